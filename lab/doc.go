// Package lab is a cluster on one machine: network namespaces for its nodes, its
// pods, a router between the nodes and somebody outside, joined by veth pairs and
// bridges. There is no Kubernetes in it, no container and no internet. The demo and
// the lessons run in it, and it is the harness of every test that needs real rules
// and real packets.
//
//	            outside
//	              eth0  172.20.9.2  fd00:172:20:9::2
//	               │
//	            router  172.20.{1,2,9}.1  fd00:172:20:{1,2,9}::1
//	             │    │
//	    ┌────────┘    └────────┐
//	  eth0                   eth0
//	172.20.1.2 and .5      172.20.2.2
//	fd00:172:20:1::2, ::5  fd00:172:20:2::2
//	  node                   node2
//	  cbr0                   cbr0
//	10.244.1.1             10.244.2.1
//	fd00:10:244:1::1       fd00:10:244:2::1
//	 │ │ │ │                 │ │
//	 │ │ │ └ client .50      │ └ pod-e .12
//	 │ │ └── pod-c  .13      └── pod-d .11
//	 │ └──── pod-b  .12
//	 └────── pod-a  .11
//
// Every network is a /24 and a /64. A pod's last number is the same in both
// families: pod-a is 10.244.1.11 and fd00:10:244:1::11. Pods, nodes and outside have
// their default route to the next machine up; the router knows both pod networks.
// It also sends 10.96.0.0/16 and fd00:10:96::/112, the Service addresses, to node,
// so that a proxy there serves clients from everywhere, as one on every node would.
// Nothing is masqueraded: whoever is reached sees who asked.
//
// [New] builds this, or less of it, in anonymous namespaces that exist only as
// descriptors of the calling program: when the program ends, in whatever way, the
// kernel removes all of it. [Isolate] gives a program without root the right to do
// so, and puts a wall between any program and the host. [Up], [Keep] and [Down] are
// the lab that outlives the command that made it.
//
// The package does not run the proxy, write packet rules, or give the machines
// file systems, process trees or names in the DNS of their own. Of the historical
// kube-proxy it answers to nothing; it takes the place of the cluster around it.
package lab
