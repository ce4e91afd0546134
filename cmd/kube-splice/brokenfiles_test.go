package main

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// write puts text into a manifest in place, as an editor or a shell does.
func (c *cluster) write(manifest, text string) {
	c.t.Helper()
	check(c.t, os.WriteFile(c.manifestPath(manifest), []byte(text), 0o600))
}

func TestBrokenManifestLeavesItsLastGoodStateInForceUntilItIsMended(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	c.apply("other", newService("other", "10.96.0.11"), newSlice("other", []string{podA}))
	program := c.start()
	clients := askSteadily(t, c.Outside, "10.96.0.10:80", 50*time.Millisecond)
	rules := c.ourRules()

	good := asText(t, newService("web", "10.96.0.10"), newSlice("web", []string{podB}))
	for i, broken := range []string{
		good[:len(good)/2],
		"",
		good + "---\nkind: Service\napiVersion: v1\nspek: {}\n",
		"\x00\xff{{{",
	} {
		c.write("web", broken)
		eventually(t, func() error { return wantSaid(program, "level=ERROR", i+1) })
		// A change of another file is served all the same.
		number := 8000 + i
		c.apply("other", newService("other", "10.96.0.11", port(int32(number))), newSlice("other", []string{podA}))
		soon(t, c.Outside, fmt.Sprintf("10.96.0.11:%d", number), "pod-a")
	}
	for _, a := range clients.stop() {
		if a.who != "pod-a" {
			t.Errorf("while the manifest was broken: %v", a)
		}
	}
	if now := rulesOf(c, "default/web:http"); len(now) != 2 || len(rules) == 0 {
		t.Errorf("rules of the Service in the broken manifest: %v", now)
	}
	check(t, wantSaid(program, "web.yaml", 4))
	check(t, wantSaid(program, "document 3", 1))

	c.write("web", good)
	soon(t, c.Outside, "10.96.0.10:80", "pod-b")
	check(t, wantSaid(program, "good again", 1))
}

func TestManifestBrokenFromTheStartStopsOnlyItself(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.write("web", "kind: Service\napiVersion: v1\nspek: {}\n")
	c.apply("other", newService("other", "10.96.0.11"), newSlice("other", []string{podA}))
	program := c.start()
	wantAnswer(t, c.Outside, "10.96.0.11:80", "pod-a")
	check(t, wantSaid(program, "level=ERROR", 1))
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	soon(t, c.Outside, "10.96.0.10:80", "pod-a")
}

func TestFolderThatGoesAwayAndComesBackIsFollowed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	c.start()
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	check(t, os.Rename(c.manifests, c.manifests+".away"))
	time.Sleep(time.Second)
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	check(t, os.Mkdir(c.manifests, 0o700))
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podB}))
	eventually(t, func() error { return answeredBy(c, "10.96.0.10:80", "pod-b") })
	check(t, os.RemoveAll(c.manifests+".away"))
}
