package relay

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller is an epoll instance of which Go's own poller tells when there is something to
// find (an epoll descriptor can be polled itself, epoll(7)). So a loop that waits holds
// no thread, and waking it costs what waking any goroutine does.
type poller struct {
	epoll  int
	file   *os.File // the same descriptor
	raw    syscall.RawConn
	look   func(uintptr) bool // kept, so that waiting allocates nothing
	began  time.Time
	armed  int64 // when file's deadline is, on the clock; 0: none
	events [256]unix.EpollEvent
	found  int
}

func newPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(epoll, true); err != nil { // what Go's poller takes
		_ = unix.Close(epoll)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{epoll: epoll, file: os.NewFile(uintptr(epoll), "epoll"), began: time.Now()}
	p.look = func(uintptr) bool {
		p.found = poll(p.epoll, p.events[:])
		return p.found > 0
	}
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		_ = p.file.Close()
		return nil, fmt.Errorf("have the runtime watch an epoll instance: %w", err)
	}
	p.raw, err = p.file.SyscallConn()
	return p, err
}

// clock returns the time since the poller was made; above 0.
func (p *poller) clock() int64 { return int64(time.Since(p.began)) + 1 }

// wait returns what has happened; if nothing has, it waits until the time given, if it is
// not 0. It may return early and with nothing.
//
// Setting a deadline costs more than a wait that ends too early now and then, so one that
// lies before the time wanted stays.
func (p *poller) wait(until int64) []unix.EpollEvent {
	if until > 0 && (p.armed == 0 || p.armed > until) {
		p.armed = until
		_ = p.file.SetReadDeadline(p.began.Add(time.Duration(until)))
	}
	p.found = 0
	if err := p.raw.Read(p.look); err != nil && p.armed != 0 { // the deadline
		p.armed = 0
		_ = p.file.SetReadDeadline(time.Time{})
		p.found = poll(p.epoll, p.events[:])
	}
	return p.events[:p.found]
}

// glance is wait without waiting.
func (p *poller) glance() []unix.EpollEvent {
	p.found = poll(p.epoll, p.events[:])
	return p.events[:p.found]
}

// watch has everything that happens to a descriptor told, once each time (EPOLLET), in
// events that have mark in Pad.
func (p *poller) watch(fd int32, events uint32, mark int32) error {
	return watchEdges(p.epoll, fd, events, mark)
}

// forget ends what watch began.
func (p *poller) forget(fd int32) {
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, int(fd), nil) // fails only if it is not watched
}

func (p *poller) close() { _ = p.file.Close() }
