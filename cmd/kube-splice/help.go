package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is a part of the bare command's help.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

func flagGroups(own *pflag.FlagSet, k *kubeProxyFlags) []flagGroup {
	return []flagGroup{
		{"Flags", own},
		{"kube-proxy's flags", k.process},
		{"Logging", k.logging},
		{"kube-proxy's flags for what its configuration file says too", k.fields},
		{"Accepted because kube-proxy has, or had, them; without a meaning here, which is said once", k.meaningless},
	}
}

// addFlagGroups gives the bare command its flags, and a help text with a part for
// each group. As in kube-proxy, an underscore in a flag's name is a hyphen.
func addFlagGroups(root *cobra.Command, groups []flagGroup) {
	for _, g := range groups {
		root.Flags().AddFlagSet(g.flags)
	}
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	usual := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		if cmd != root {
			return usual(cmd)
		}
		return writeUsage(cmd.OutOrStderr(), cmd, groups)
	})
}

func writeUsage(w io.Writer, cmd *cobra.Command, groups []flagGroup) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Usage:\n  %s\n  kube-splice COMMAND\n\nExamples:\n%s\n\nCommands:\n", cmd.UseLine(), cmd.Example)
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&text, "  %-10s %s\n", sub.Name(), sub.Short)
		}
	}
	for _, g := range groups {
		fmt.Fprintf(&text, "\n%s:\n%s", g.title, g.flags.FlagUsages())
	}
	_, err := io.WriteString(w, text.String())
	return err
}
