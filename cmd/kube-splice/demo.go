package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-splice/kube-splice/lab"
)

func newLabDemoCommand(env environment) *cobra.Command {
	manifests := filepath.Join("testdata", "manifests")
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the proxy in a lab, send it requests, and show what happened",
		Long: `demo builds a lab, runs the proxy on its first node, sends requests to five
Services from a pod and from outside, shows which pod answered how often, the
connection log and the rules, and removes everything. It fails if an answer is not
what it must be.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := lab.Isolate(); err != nil {
				return err
			}
			return runDemo(cmd.Context(), env, manifests)
		},
	}
	cmd.Flags().StringVar(&manifests, "manifests", manifests, "folder of the demo's Services")
	return cmd
}

// demo is the lab with the proxy running in it.
type demo struct {
	out   io.Writer
	lab   *lab.Lab
	proxy *demoProxy
	wrong []string // what was not as it must be
}

func runDemo(ctx context.Context, env environment, manifests string) (err error) {
	d := &demo{out: env.Stdout}
	folder, err := os.MkdirTemp("", "kube-splice-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if d.lab, err = lab.New(lab.Config{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.lab.Close()) }()
	for _, pod := range d.lab.Pods {
		server, err := pod.Serve(8080)
		if err != nil {
			return err
		}
		defer func() { _ = server.Close() }()
		datagrams, err := pod.ServeDatagrams(8080)
		if err != nil {
			return err
		}
		defer func() { _ = datagrams.Close() }()
	}
	d.say("The lab: nodes, a router, pods and a client outside, each a network namespace of this machine.")
	args := []string{"--manifests", manifests, "--hostname-override", "node", "--connection-log", "text"}
	d.say("\n[node] $ kube-splice %s", strings.Join(args, " "))
	if d.proxy, err = startDemoProxy(ctx, d.lab.Node, filepath.Join(folder, "connections.log"), args); err != nil {
		return err
	}
	d.show(ctx)
	d.proxy.stop()
	return d.report(ctx)
}

func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format+"\n", args...) }

// show sends the requests and checks the answers.
func (d *demo) show(ctx context.Context) {
	client := d.lab.Pod("client").Namespace
	d.say("\nweb: three pods in turn")
	d.expect(d.ask(ctx, client, "10.96.0.10:80", 12), 4, 4, 4)
	d.say("\nweb, by its IPv6 address")
	d.expect(d.ask(ctx, client, "[fd00:10:96::10]:80", 12), 4, 4, 4)
	d.say("\nsticky: one pod for a client, as long as sessionAffinityConfig says")
	d.expect(d.ask(ctx, client, "10.96.0.20:80", 12), 12)
	d.say("\nnodeport: from outside, by the node's own address")
	d.expect(d.ask(ctx, d.lab.Outside, lab.NodeIP+":30080", 12), 4, 4, 4)
	d.say("\ndns: datagrams, three pods in turn")
	d.expect(d.askDatagrams(ctx, client, "10.96.0.53:53", 12), 4, 4, 4)
	d.say("\nempty: a Service without endpoints refuses at once")
	d.expectRefused(client, "10.96.0.40:80")
}

// ask sends n HTTP requests, each on a connection of its own, and counts the answers
// by pod.
func (d *demo) ask(ctx context.Context, from *lab.Namespace, address string, n int) map[string]int {
	d.say("[%s] $ for i in $(seq %d); do curl http://%s/; done", from.Name, n, address)
	return d.count(n, func() (string, error) { return askOnce(ctx, from, address) })
}

// askDatagrams does the same with datagrams, each from a port of its own.
func (d *demo) askDatagrams(ctx context.Context, from *lab.Namespace, address string, n int) map[string]int {
	host, port, _ := strings.Cut(address, ":")
	d.say("[%s] $ for i in $(seq %d); do echo who | nc -uw1 %s %s; done", from.Name, n, host, port)
	return d.count(n, func() (string, error) { return askDatagram(ctx, from, address) })
}

// count asks n times and counts the answers by pod.
func (d *demo) count(n int, ask func() (string, error)) map[string]int {
	answers := map[string]int{}
	for range n {
		who, err := ask()
		if err != nil {
			who = "error: " + err.Error()
		}
		answers[who]++
	}
	for _, who := range slices.Sorted(maps.Keys(answers)) {
		d.say("  %-6s answered %2d times", who, answers[who])
	}
	return answers
}

// expect checks how many answers each pod gave, whichever pod it was.
func (d *demo) expect(answers map[string]int, want ...int) {
	got := slices.Sorted(maps.Values(answers))
	if !slices.Equal(got, want) {
		d.wrong = append(d.wrong, fmt.Sprintf("answers %v, want them spread as %v", answers, want))
	}
}

func (d *demo) expectRefused(from *lab.Namespace, address string) {
	started := time.Now()
	conn, err := from.Dial("tcp", address, 3*time.Second)
	if err == nil {
		_ = conn.Close()
	}
	d.say("[%s] $ curl http://%s/\n  %v", from.Name, address, err)
	if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(started) > time.Second {
		d.wrong = append(d.wrong, fmt.Sprintf("%s: %v after %v, want connection refused at once", address, err, time.Since(started)))
	}
}

// report shows what the proxy leaves behind, cleans up, and gives the verdict.
func (d *demo) report(ctx context.Context) error {
	text, err := os.ReadFile(d.proxy.log)
	if err != nil {
		return fmt.Errorf("read the connection log: %w", err)
	}
	d.say("\nThe connection log, the first line of each Service:\n%s", firstOfEach(string(text)))
	rules, err := d.rules(ctx)
	if err != nil {
		return err
	}
	d.say("The rules for IPv4:\n%s", rules)
	d.say("[node] $ kube-splice cleanup")
	if _, err := d.lab.Node.Output(exec.CommandContext(ctx, d.proxy.program, "cleanup")); err != nil {
		return err
	}
	if rules, err = d.rules(ctx); err != nil || rules != "" {
		d.wrong = append(d.wrong, fmt.Sprintf("rules are left after the cleanup: %s (%v)", rules, err))
	}
	if len(d.wrong) > 0 {
		return fmt.Errorf("not as it must be: %s", strings.Join(d.wrong, "; "))
	}
	d.say("\nEverything was as it must be, and all of it is removed.")
	return nil
}

// rules returns the lines of our chains that the node's kernel has.
func (d *demo) rules(ctx context.Context) (string, error) {
	saved, err := d.lab.Node.Output(exec.CommandContext(ctx, "iptables-save"))
	if err != nil {
		return "", fmt.Errorf("list the rules: %w", err)
	}
	var ours strings.Builder
	for line := range strings.Lines(string(saved)) {
		if strings.HasPrefix(line, "-A ") && (strings.Contains(line, "KUBE-PORTALS") || strings.Contains(line, "KUBE-NODEPORT")) {
			ours.WriteString("  " + line)
		}
	}
	return ours.String(), nil
}

// firstOfEach returns the first line of each Service in a connection log.
func firstOfEach(log string) string {
	var first strings.Builder
	seen := map[string]bool{}
	for line := range strings.Lines(log) {
		_, rest, _ := strings.Cut(line, "service=")
		name, _, _ := strings.Cut(rest, " ")
		if !seen[name] {
			seen[name] = true
			first.WriteString("  " + line)
		}
	}
	return first.String()
}
