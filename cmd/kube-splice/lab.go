package main

import (
	"fmt"
	"io"
	"os"
	"strings"

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
		Long: `up builds the lab and leaves it running after this command, until "lab down". One
user has one lab at a time. It prints the machines, their addresses, how to run a
command on each, and what to try first. A web server and a UDP server answer in every pod.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			running, err := lab.Up(cmd.Context(), lab.UpOptions{})
			if err != nil {
				return err
			}
			if err := running.Describe(env.Stdout); err != nil {
				return err
			}
			return sayNext(env.Stdout, running)
		},
	}
}

// sayNext tells what to do with a lab that has just been put up.
func sayNext(w io.Writer, running *lab.Running) error {
	enter := func(machine string) string { return strings.Join(running.Enter(machine), " ") }
	_, err := fmt.Fprintf(w, `
Every pod answers HTTP on port %d. Start the proxy on node, in the project's folder:
  %s %s --manifests testdata/manifests --hostname-override node
Ask a Service from client, in another terminal:
  %s curl http://10.96.0.10/
End the lab, and what runs in it:
  %[3]s lab down
`, running.Port, enter("node"), os.Args[0], enter("client"))
	return err
}

func newLabDownCommand(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the programs in the lab, and remove it",
		Long: `down ends the programs that run on the lab's machines, with SIGTERM and 2 s later
SIGKILL, and removes the lab. No other program is touched. When there is no lab, or
only what is left of one after a crash, that is no error; after a crash without root,
programs in what was the lab are left alone: there is no telling them from others.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ended, err := lab.Down(cmd.Context())
			if ended.Programs > 0 {
				cmd.Printf("programs ended in the lab: %d\n", ended.Programs)
			}
			if err == nil && !ended.Lab {
				cmd.Println("there is no lab")
			}
			return err
		},
	}
}
