module github.com/kube-splice/kube-splice/testdata/bench

go 1.26.0

require github.com/kube-splice/kube-splice v0.0.0

require (
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/kube-splice/kube-splice => ../..
