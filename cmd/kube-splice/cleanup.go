package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-splice/kube-splice/redirect"
)

func newCleanupCommand(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove all rules of kube-splice from this node",
		Long: `cleanup removes the chains of kube-splice and the jumps to them, for IPv4 and
IPv6, legacy and nft iptables, and its routing rules and routes. Stop the proxy first: a running one writes its rules
again. It may be run again, and leaves every other rule as it is.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCleanup(cmd.Context(), env) },
	}
}

func runCleanup(ctx context.Context, env environment) error {
	log := newLog(env.Stderr, "text", 0)
	raisePrivileges(log)
	removed, err := redirect.Cleanup(ctx, redirect.Config{Log: log})
	if err != nil {
		return err
	}
	if isServed() {
		log.Warn("a kube-splice runs on this node and writes its rules again: stop it, then clean up once more")
	}
	said := "there were no rules of kube-splice"
	if len(removed) > 0 {
		said = "removed the rules of kube-splice: " + strings.Join(removed, ", ")
	}
	_, err = fmt.Fprintln(env.Stdout, said)
	return err
}
