// Package balancer decides which endpoint of a Service port gets the next
// connection: by a policy, unless ClientIP session affinity has decided already.
//
// One [Balancer] serves one Service port in one IP family. It is given the
// eligible endpoints as a whole state ([Balancer.Update]) and asked for one
// endpoint a dial attempt ([Balancer.Pick]); each [Pick] is told how it went, so
// the Balancer knows every endpoint's open connections, its dial latency and its
// failures. It is the only writer of all that, under one mutex.
//
// Where traffic policies give different clients different endpoints, each scope has
// its own eligible endpoints and its own rotation. What is known of an endpoint, and
// which one a client is pinned to, is one for all scopes.
//
// It does not decide which endpoints are eligible (service.Port does), opens no
// socket, retries nothing and logs nothing. Nodes share no state: each counts
// the connections it made itself.
//
// It answers to pkg/proxy/userspace/roundrobin.go of the historical kube-proxy
// and differs where that was known to be wrong: timeoutSeconds holds whichever
// object arrives first and when it is edited, affinity records are bounded and
// leave when they expire, and the rotation survives changes of the endpoints.
package balancer
