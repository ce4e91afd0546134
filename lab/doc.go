// Package lab builds a small cluster out of network namespaces on one machine.
package lab
