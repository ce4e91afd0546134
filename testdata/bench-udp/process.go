package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

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

// cpu returns the processor time a process and its children have used.
func cpu(pid int) (used time.Duration) {
	for _, id := range family(pid) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", id))
		for _, file := range files {
			var nanoseconds int64
			text, _ := os.ReadFile(file)
			_, _ = fmt.Sscan(string(text), &nanoseconds)
			used += time.Duration(nanoseconds)
		}
	}
	return used
}

// resident returns their resident memory, in bytes.
func resident(pid int) (bytes int) {
	for _, id := range family(pid) {
		var size, pages int
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", id))
		_, _ = fmt.Sscan(string(text), &size, &pages)
		bytes += pages * os.Getpagesize()
	}
	return bytes
}
