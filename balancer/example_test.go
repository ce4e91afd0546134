package balancer_test

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

// One connection: endpoints are tried until one answers, and each Pick is told
// how it went.
func ExampleBalancer() {
	b := balancer.New(balancer.Config{})
	defer b.Close()
	dead, alive := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
	b.Update("source-hash", 3*time.Hour, balancer.Eligible{service.Cluster: {{Addr: dead}, {Addr: alive}}})

	dial := func(endpoint netip.AddrPort) error {
		if endpoint == dead {
			return errors.New("connection refused")
		}
		return nil
	}
	client := netip.MustParseAddr("192.0.2.7")
	var tried []netip.AddrPort
	for {
		pick, err := b.Pick(service.Cluster, client, tried)
		if err != nil {
			fmt.Println(err)
			return
		}
		start := time.Now()
		if err := dial(pick.Endpoint); err != nil {
			fmt.Println(pick.Endpoint, err)
			pick.Failed()
			tried = append(tried, pick.Endpoint)
			continue
		}
		pick.Connected(time.Since(start))
		fmt.Println(pick.Endpoint, "serves") // relay here
		pick.Done()
		return
	}
	// Output:
	// 10.0.0.1:80 connection refused
	// 10.0.0.2:80 serves
}
