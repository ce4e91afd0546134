package lab

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
)

// Start is cmd.Start inside the namespace: the program and all its children run
// there. The caller waits for cmd as usual. Such a program still sees the /sys
// and the mounts of this process.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	return n.Do(cmd.Start)
}

// Output runs cmd inside the namespace to its end and returns its standard
// output. The error of a program that failed carries what it wrote to standard
// error, unless cmd.Stderr was set.
func (n *Namespace) Output(cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout = &stdout
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		err = fmt.Errorf("run %s in network namespace %s: %w: %s", cmd.Path, n.Name, err, said)
	}
	return stdout.Bytes(), err
}
