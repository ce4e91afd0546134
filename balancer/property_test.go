package balancer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Long random lives of a Balancer; a failure names the seed that repeats it.
func TestRandomLivesFollowTheModel(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			data := []byte{0, 0xff, 3, 2} // most lives begin with endpoints and affinity
			for range 2_000 {
				data = append(data, byte(random.Uint32()))
			}
			runModel(t, data[seed%2*4:])
		})
	}
}

func FuzzAffinity(f *testing.F) {
	const update, timeout, pick, retry, fail, done, sleep = 0, 3, 5, 9, 10, 11, 13
	const updateLocal, updateBoth, pickLocal = 1, 2, 7
	f.Add([]byte{update, 7, timeout, 2, pick, 1, sleep, 159, pick, 1, sleep, 160, pick, 1})                // sliding, then expired
	f.Add([]byte{update, 3, timeout, 3, pick, 1, update, 0, pick, 1, update, 3, pick, 1})                  // scaled 2-0-2
	f.Add([]byte{update, 3, timeout, 3, pick, 1, timeout, 1, sleep, 80, timeout, 3, pick, 1})              // edited live
	f.Add([]byte{update, 3, timeout, 3, pick, 1, pick, 1, fail, 0, retry, 1, 1, fail, 0, done})            // a late failure
	f.Add([]byte{update, 7, timeout, 3, pick, 0, pick, 1, pick, 2, pick, 3, pick, 4, pick, 0})             // over the cap
	f.Add([]byte{update, 7, timeout, 3, pick, 0, update, 6, done, 0, update, 7, pick, 0, 4, 0})            // its endpoint left
	f.Add([]byte{update, 7, updateLocal, 1, timeout, 3, pick, 1, pickLocal, 1, pick, 1, retry, 7, 1})      // a pin moves between scopes
	f.Add([]byte{updateBoth, 1, 2, timeout, 3, pick, 1, updateBoth, 2, 1, pickLocal, 1, updateBoth, 0, 0}) // endpoints change scopes
	f.Fuzz(func(t *testing.T, data []byte) { runModel(t, data) })
}
