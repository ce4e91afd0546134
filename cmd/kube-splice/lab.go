package main

import (
	"github.com/spf13/cobra"

	"github.com/kube-splice/kube-splice/lab"
)

func newLabCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "A small cluster of network namespaces on this machine",
		Long: `lab builds a cluster without Kubernetes out of network namespaces: two nodes, a
router, pods, and somebody outside. Nothing of the host's own network is touched.
It works as root, and without root in a user namespace of its own.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLabUpCommand(env), newLabDownCommand(env), newLabDemoCommand(env))
	cmd.AddCommand(&cobra.Command{
		Use: "keep", Hidden: true, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return lab.Keep(cmd.Context()) },
	})
	return cmd
}

func newLabUpCommand(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Build the lab and leave it running",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			running, err := lab.Up(cmd.Context(), lab.UpOptions{})
			if err != nil {
				return err
			}
			return running.Describe(env.Stdout)
		},
	}
}

func newLabDownCommand(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the lab",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			was, err := lab.Down(cmd.Context())
			if err == nil && !was {
				cmd.Println("there is no lab")
			}
			return err
		},
	}
}
