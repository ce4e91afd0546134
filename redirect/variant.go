package redirect

import (
	"context"

	"github.com/kube-splice/kube-splice/service"
)

// kubeletChains are the chains in table mangle by which the kubelet shows which
// kernel interface the node uses.
var kubeletChains = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// chooseVariant finds the programs of the kernel interface that the node uses.
// In a container the plain programs are the image's choice, not the node's: the
// kubelet's chains tell. Rules in both interfaces would both be in force.
func chooseVariant(ctx context.Context, cfg Config) (*tool, string, error) {
	first, err := openTool(ctx, cfg, service.IPv4, plain)
	if err != nil {
		return nil, "", err
	}
	variant := first.other()
	second, err := openTool(ctx, cfg, service.IPv4, variant)
	if err != nil {
		return first, plain, ctx.Err() // programs of one interface only: no choice
	}
	hinted, err := second.hinted(ctx)
	if err != nil || !hinted {
		return first, plain, ctx.Err()
	}
	if hinted, err = first.hinted(ctx); err != nil || hinted {
		return first, plain, ctx.Err()
	}
	cfg.Log.Info("The kubelet's chains are in the other iptables; using that one", "programs", second.name)
	return second, variant, nil
}

// other returns the kernel interface that t does not use.
func (t *tool) other() string {
	if t.mode == nft {
		return legacy
	}
	return nft
}

// hinted reports whether the kubelet's chains are there.
func (t *tool) hinted(ctx context.Context) (bool, error) {
	have, err := t.save(ctx)
	if err != nil {
		return false, err
	}
	for _, chain := range kubeletChains {
		if _, exists := have["mangle"][chain]; exists {
			return true, nil
		}
	}
	return false, nil
}
