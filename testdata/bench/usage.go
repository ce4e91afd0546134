package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what a program and its children have taken.
type usage struct {
	cpu         time.Duration // of the threads there are; in user space and in the kernel
	resident    int           // bytes
	descriptors int
}

// usageOf returns nothing for no program.
func usageOf(cmd *exec.Cmd) (u usage) {
	if cmd == nil {
		return u
	}
	for _, pid := range family(cmd.Process.Pid) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, file := range files {
			u.cpu += time.Duration(number(file, 0))
		}
		u.resident += number(fmt.Sprintf("/proc/%d/statm", pid), 1) * os.Getpagesize()
		open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		u.descriptors += len(open)
	}
	return u
}

// take notes what was taken between two moments.
func (s *sample) take(before, after usage) {
	s.cpu = after.cpu - before.cpu
	s.resident = after.resident - before.resident
	s.descriptors = after.descriptors - before.descriptors
}

// family returns a process and its children.
func family(pid int) []int {
	all := []int{pid}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, child := range strings.Fields(string(text)) {
			id, _ := strconv.Atoi(child)
			all = append(all, family(id)...)
		}
	}
	return all
}

// number returns a field of a file of numbers.
func number(file string, field int) int {
	text, _ := os.ReadFile(file)
	fields := strings.Fields(string(text))
	if field >= len(fields) {
		return 0
	}
	n, _ := strconv.Atoi(fields[field])
	return n
}
