package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/kube-splice/kube-splice/config"
)

// version is set by the linker (-X main.version=...); a plain build says what Go
// knows.
var version = ""

// newRootCommand returns the bare command, which runs the proxy, with all
// subcommands.
func newRootCommand(env environment) *cobra.Command {
	var o options
	kubeProxy := newKubeProxyFlags()
	var instead struct{ version, cleanup bool }
	root := &cobra.Command{
		Use:   "kube-splice [--manifests PATH | --kubeconfig FILE | --config FILE]",
		Short: "A userspace Kubernetes Service proxy",
		Long: `kube-splice serves Kubernetes Services from user space: one listener per Service
port, rules that lead clients to it, and for every connection a backend chosen,
dialled, relayed with splice(2) and, if wanted, logged.

It runs until SIGTERM, then lets connections finish (--drain-timeout). Its rules
stay, so that the next start takes up the same listener ports; "kube-splice
cleanup" removes them.`,
		Example: `  kube-splice --manifests ./services
  kubectl get services,endpointslices -A -o yaml | kube-splice --manifests -
  kube-splice --config /var/lib/kube-proxy/config.conf --hostname-override node1
  kube-splice --manifests ./services --connection-log json --connection-log-file /var/log/connections.log`,
		SilenceErrors: true, SilenceUsage: true,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case instead.version:
				_, err := fmt.Fprintln(env.Stdout, versionText())
				return err
			case instead.cleanup:
				return runCleanup(cmd.Context(), env)
			}
			return runConfigured(cmd.Context(), env, o, kubeProxy)
		},
	}
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w (%q lists the flags)", err, cmd.CommandPath()+" --help")
	})
	own := newFlagSet()
	o.addFlags(own)
	kubeProxy.process.BoolVar(&instead.version, "version", false, "print the version and exit")
	kubeProxy.process.BoolVar(&instead.cleanup, "cleanup", false, "remove all rules of kube-splice and exit; the same as the cleanup command")
	addFlagGroups(root, flagGroups(own, kubeProxy))
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newCleanupCommand(env), newLabCommand(env))
	return root
}

// runConfigured does what kube-proxy's flags and its configuration file ask for.
func runConfigured(ctx context.Context, env environment, o options, flags *kubeProxyFlags) error {
	var err error
	if o.kubeProxy, err = flags.settle(); err != nil {
		return err
	}
	switch {
	case flags.writeTo != "":
		return runWriteConfig(env, o)
	case flags.initOnly:
		return runInitOnly(env, o)
	}
	return runProxy(ctx, env, o)
}

// runWriteConfig writes the configuration with all defaults.
func runWriteConfig(env environment, o options) error {
	if err := o.validateSettings(); err != nil {
		return err
	}
	if err := config.Write(o.kubeProxy.flags.writeTo, o.kubeProxy.config); err != nil {
		return err
	}
	_, err := fmt.Fprintf(env.Stdout, "wrote the configuration to %s\n", o.kubeProxy.flags.writeTo)
	return err
}

// noArguments refuses words that no flag takes.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unknown command or argument %q (%q lists the commands)", args[0], cmd.CommandPath()+" --help")
	}
	return nil
}

func versionText() string {
	return fmt.Sprintf("kube-splice %s %s %s/%s", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); version == "" && ok {
		return info.Main.Version
	}
	return version
}
