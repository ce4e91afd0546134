// Package service is the vocabulary of kube-splice: what a Service port is, by
// which addresses clients reach it, and which endpoints stand behind it.
//
// Values here are plain and, once published in a [Snapshot], immutable: any
// goroutine may read them without a lock. The package knows nothing of the
// Kubernetes API (package source translates), of sockets (package proxy) or of
// packet rules (package redirect), and imports nothing of ours.
//
// It answers to pkg/proxy/types.go and to the serviceInfo record of
// pkg/proxy/userspace/proxier.go in the historical kube-proxy. Two things are
// different on purpose: the protocol and the IP family belong to a port's
// identity, so "dns" may be served on 53/TCP and 53/UDP, IPv4 and IPv6, with
// nothing shared.
package service
