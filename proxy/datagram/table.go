package datagram

import "hash/maphash"

// key tells the flows of one listener apart. One client may use several addresses of
// the node, and expects each answer from the one it asked.
type key struct {
	clientIP, local ip
	scope           uint32 // the interface, if the client's address is link-local
	clientPort      uint16
}

// table finds flows by their keys. It is a hash table with chains through the flows
// themselves: a Go map would take as much memory again as the flows.
type table struct {
	seed   maphash.Seed
	chains []*flow // a power of two
	size   int
}

const fewestChains = 8

func (t *table) chain(k key) *(*flow) {
	return &t.chains[maphash.Comparable(t.seed, k)&uint64(len(t.chains)-1)]
}

func (t *table) find(k key) *flow {
	if t.size == 0 {
		return nil
	}
	f := *t.chain(k)
	for f != nil && f.key != k {
		f = f.chained
	}
	return f
}

func (t *table) insert(f *flow) {
	if t.size == len(t.chains) {
		t.resize(max(2*t.size, fewestChains))
	}
	t.size++
	first := t.chain(f.key)
	f.chained, *first = *first, f
}

func (t *table) remove(f *flow) {
	at := t.chain(f.key)
	for *at != f {
		at = &(*at).chained
	}
	*at, f.chained = f.chained, nil
	t.size--
	if t.size < len(t.chains)/8 && len(t.chains) > fewestChains {
		t.resize(len(t.chains) / 2)
	}
}

func (t *table) resize(chains int) {
	before := t.chains
	if before == nil {
		t.seed = maphash.MakeSeed()
	}
	t.chains = make([]*flow, chains)
	for _, f := range before {
		for f != nil {
			next, first := f.chained, t.chain(f.key)
			f.chained, *first = *first, f
			f = next
		}
	}
}

// all returns the flows, so that they can be removed on the way.
func (t *table) all() []*flow {
	all := make([]*flow, 0, t.size)
	for _, f := range t.chains {
		for ; f != nil; f = f.chained {
			all = append(all, f)
		}
	}
	return all
}
