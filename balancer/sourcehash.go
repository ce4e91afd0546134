package balancer

import "net/netip"

// sourceHash gives a client always the same endpoint, on every node and after
// every restart, by rendezvous hashing (Thaler and Ravishankar, 1998): each
// endpoint gets a score from its own and the client's address, and the highest
// wins. When an endpoint leaves, only its clients move; when one joins, it takes
// its share from all alike. A retry goes to the next-highest score.
//
// So the hash must never change between releases nor depend on the process:
// hash/maphash will not do.
type sourceHash struct{}

func (sourceHash) choose(c candidates, client netip.Addr) *endpoint {
	key := hash(client, 0)
	var best *endpoint
	var highest uint64
	for _, e := range c.all {
		if c.tried(e) {
			continue
		}
		if score := mix(key ^ e.hash); best == nil || score > highest {
			best, highest = e, score
		}
	}
	return best
}

// hash is the 64-bit FNV-1a hash of the address in its 16-byte form and the
// port, mixed.
func hash(addr netip.Addr, port uint16) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, b := range addr.As16() {
		h = (h ^ uint64(b)) * prime
	}
	h = (h ^ uint64(port>>8)) * prime
	h = (h ^ uint64(port&0xff)) * prime
	return mix(h)
}

// mix makes every bit of the result depend on every bit of x: the finalizer of
// MurmurHash3. FNV alone leaves neighbouring addresses with neighbouring scores.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
