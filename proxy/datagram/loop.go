package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Loop serves the flows of its Listeners in one goroutine. The owner closes it.
type Loop struct {
	cfg     Config
	calls   chan func() // what others want done in the Loop
	wakeup  *os.File    // an eventfd: written to after a call was put into calls
	closing chan struct{}
	stopped chan struct{}
	counts  counts

	// The goroutine's.
	epoll     int
	cannotCut bool // the kernel does not know UDP_SEGMENT
	events    []unix.EpollEvent
	started   time.Time
	now       int64 // nanoseconds since started; read once a turn
	listeners map[int32]*Listener
	sockets   []*flow // by descriptor
	flows     int     // but for those turned away
	ages      []*age
	held      map[*flow][]datagram // first datagrams of flows that are asking

	turnedAway    age // see Loop.turnAway
	turnedAwayNow int

	fromClients, fromBackends, fromErrors *inbox
	toBackend, toClients                  *outbox
	replying                              *Listener // whose replies are in toClients
}

// yieldEvery is how often the Loop lets the scheduler have its thread. When a goroutine
// has gone on for 10 ms (forcePreemptNS in the runtime), the runtime's monitor
// takes its processor away at every system call that lasts 20 µs, however little else
// there is to do, and so sleeps no longer than that itself: at 20,000 datagrams a
// second that was a fifth of all the time used.
const yieldEvery = int64(8 * time.Millisecond)

// The kinds of descriptors in the epoll instance, in EpollEvent.Pad.
const (
	aWakeup = iota
	aListener
	aFlow
)

// New starts a Loop.
func New(cfg Config) (*Loop, error) {
	if cfg.MaxFlows <= 0 {
		cfg.MaxFlows = defaultMaxFlows
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("start a loop for datagrams: %w", os.NewSyscallError("epoll_create1", err))
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("start a loop for datagrams: %w", os.NewSyscallError("eventfd", err))
	}
	l := &Loop{
		cfg: cfg, epoll: epoll, started: time.Now(), now: 1,
		calls: make(chan func(), batch), wakeup: os.NewFile(uintptr(event), "eventfd"),
		closing: make(chan struct{}), stopped: make(chan struct{}),
		events: make([]unix.EpollEvent, 4*batch), listeners: map[int32]*Listener{}, held: map[*flow][]datagram{},
		turnedAway:  age{limit: int64(turnedAwayLimit)},
		fromClients: newInbox(batch, largest, true), fromBackends: newInbox(batch, largest, false), fromErrors: newInbox(mostQuoted, longestQuoted, false),
		toBackend: newOutbox(false), toClients: newOutbox(true),
	}
	if err := l.watch(event, aWakeup); err != nil {
		_ = unix.Close(epoll)
		_ = l.wakeup.Close()
		return nil, fmt.Errorf("start a loop for datagrams: %w", err)
	}
	l.cannotCut = !canCut()
	go l.run()
	return l, nil
}

// Close ends every flow and closes every listening socket. It returns when all are
// gone, and is called once.
func (l *Loop) Close() {
	close(l.closing)
	_ = l.post(func() {})
	<-l.stopped
	_ = l.wakeup.Close()
}

// post has fn done in the Loop, soon. It fails only when the Loop is closed; then fn is
// not done.
func (l *Loop) post(fn func()) error {
	select {
	case l.calls <- fn:
	case <-l.stopped:
		return net.ErrClosed
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = l.wakeup.Write(one[:]) // fails when the Loop is closed, which may have called fn before
	return nil
}

// call has fn done in the Loop and waits for it.
func (l *Loop) call(fn func() error) error {
	result := make(chan error, 1)
	if err := l.post(func() { result <- fn() }); err != nil {
		return err
	}
	select {
	case err := <-result:
		return err
	case <-l.stopped:
	}
	select {
	case err := <-result: // it was done, last
		return err
	default:
		return net.ErrClosed
	}
}

// run is the Loop's goroutine. It waits in epoll_wait(2) itself rather than in Go's
// poller: at 20,000 datagrams a second most turns have one to pass on, and being woken
// by the kernel costs less than being woken by the scheduler. It keeps its thread, which
// otherwise changes at every other yield, and with it the processor whose caches are warm.
func (l *Loop) run() {
	runtime.LockOSThread()
	defer close(l.stopped)
	next, yielded := int64(0), int64(0)
	for {
		n := l.wait(next)
		l.now = max(int64(time.Since(l.started)), 1)
		if l.now-yielded > yieldEvery {
			runtime.Gosched() // or the runtime would watch us, every 20 µs
			yielded = l.now
		}
		for i := range l.events[:n] {
			l.handle(&l.events[i])
		}
		l.sendReplies()
		next = l.expire()
		select {
		case <-l.closing:
			l.shutdown()
			return
		default:
		}
	}
}

// wait waits for events until the time next, if it is not 0.
func (l *Loop) wait(next int64) int {
	timeout := -1
	if next > 0 {
		left := time.Duration(next - l.now)
		timeout = int(min(max(left+time.Millisecond-1, 0), time.Hour) / time.Millisecond)
	}
	n, err := unix.EpollWait(l.epoll, l.events, timeout)
	if err != nil { // EINTR; nothing else can befall us (epoll_wait(2))
		return 0
	}
	return n
}

func (l *Loop) handle(e *unix.EpollEvent) {
	switch e.Pad {
	case aWakeup:
		var count [8]byte
		_, _ = unix.Read(int(e.Fd), count[:])
		l.serveCalls()
	case aListener:
		if n := l.listeners[e.Fd]; n != nil {
			l.receive(n)
		}
	case aFlow:
		// A flow ended in this turn may have left its number to another: then there
		// is nothing to read.
		if f := l.sockets[e.Fd]; f != nil {
			l.hear(f, e.Events)
		}
	}
}

func (l *Loop) serveCalls() {
	for {
		select {
		case fn := <-l.calls:
			fn()
		default:
			return
		}
	}
}

// watch has the Loop woken when fd can be read from, or has an error.
func (l *Loop) watch(fd int, kind int32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd), Pad: kind}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &event))
}

func (l *Loop) shutdown() {
	for _, n := range l.listeners {
		l.closeListener(n, Shutdown)
	}
	_ = unix.Close(l.epoll)
}

// isShortage reports whether a socket could not be had for want of something that
// another flow could give: descriptors, memory, ephemeral ports.
func isShortage(err error) bool {
	for _, errno := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EAGAIN, unix.EADDRINUSE, unix.EADDRNOTAVAIL, unix.ENOSPC} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
