package lab_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-splice/kube-splice/lab"
)

func TestMain(m *testing.M) {
	if err := lab.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestX(t *testing.T) {
	for range 5 {
		s := time.Now()
		l, err := lab.New(lab.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(time.Since(s))
		s = time.Now()
		ln, err := l.Pod("pod-d").Listen("tcp", ":80")
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"10.244.2.11:80", "[fd00:10:244:2::11]:80"} {
			c, err := l.Pod("client").Dial("tcp", a, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(c.LocalAddr())
			c.Close()
		}
		t.Log(time.Since(s))
		ln.Close()
		l.Close()
		t.Log(time.Since(s))
	}
}
