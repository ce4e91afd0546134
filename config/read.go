package config

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// longest is the size in bytes of the longest file that is read. A ConfigMap holds no
// more, and a reader of YAML may take minutes for what is much longer.
const longest = 1 << 20

// How a file may be opened. A pipe that nobody writes to holds up who opens it, unless
// O_NONBLOCK is given (fifo(7)).
const (
	mayBePipe     = 0
	mustBeRegular = syscall.O_NONBLOCK
)

// read returns what a file says.
func read(path string, how int) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|how, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if how == mustBeRegular && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file (%s)", path, info.Mode().Type())
	}
	text, err := io.ReadAll(io.LimitReader(file, longest+1))
	if len(text) > longest {
		return nil, fmt.Errorf("%s is longer than %d bytes: give the configuration file", path, longest)
	}
	return text, err
}
