package relay

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// loop is one goroutine and the connections it serves; but for calls and connections,
// everything in it is that goroutine's. Its clock counts nanoseconds.
type loop struct {
	engine      *Loops
	connections atomic.Int64 // those on their way to this loop included

	mu      sync.Mutex
	calls   []func() // what others want done in the loop
	waits   bool     // it may be waiting, and must be woken after a call was added
	wakeup  int32    // an eventfd
	serving []func() // calls being done

	poller    *poller
	now       int64 // read once a turn
	watched   []watched
	marks     int32   // the last one given
	ready     []*pair // had more to do than one turn allows
	timers    timers
	written   written
	pipes     pipes
	scratch   []byte   // what is read is written from here
	buffers   [][]byte // spare ones, of the same size
	room      sockaddr
	turn      uint64
	aborted   bool
	stopped   bool
	housework int64 // when it is due; 0: there is none
}

// watched is who a descriptor of the poller belongs to.
type watched struct {
	pair     *pair
	acceptor *acceptor
	mark     int32 // tells it from those that had the descriptor before
}

const (
	// bufferSize is how much is copied at once. A direction that fills it again and again
	// is bulk, and is spliced.
	bufferSize = 16 << 10
	// spareBuffers is how many unused buffers a loop keeps.
	spareBuffers = 16
	// houseworkEvery is how often unused pipes and buffers are let go, and peers looked
	// for that leave data unanswered.
	houseworkEvery = int64(2 * time.Second)
)

func newLoop(e *Loops) (*loop, error) {
	p, err := newPoller()
	if err != nil {
		return nil, fmt.Errorf("start a relay loop: %w", err)
	}
	wakeup, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		p.close()
		return nil, fmt.Errorf("start a relay loop: %w", os.NewSyscallError("eventfd", err))
	}
	l := &loop{engine: e, poller: p, wakeup: int32(wakeup), pipes: pipes{open: &e.pipes}, scratch: make([]byte, bufferSize)}
	if err := p.watch(l.wakeup, unix.EPOLLIN, 0); err != nil {
		_ = unix.Close(wakeup)
		p.close()
		return nil, fmt.Errorf("start a relay loop: %w", err)
	}
	return l, nil
}

// run is the loop's goroutine.
func (l *loop) run() {
	for !l.stopped {
		events := l.poller.glance()
		if len(events) == 0 && len(l.ready) == 0 && l.mayWait() {
			events = l.poller.wait(l.next())
		}
		l.now = l.poller.clock()
		l.turn++
		for i := range events {
			l.handle(&events[i])
		}
		l.serveCalls()
		l.goOn()
		l.timers.expire(l.now)
		if l.housework > 0 && l.now >= l.housework {
			l.tidy()
		}
	}
}

// close lets go what a loop that has ended holds. It is for who stopped it: its own last post
// may still have been about to write to wakeup when the loop ended.
func (l *loop) close() {
	l.pipes.drop()
	l.poller.close()
	_ = unix.Close(int(l.wakeup))
}

// next returns when the loop has something to do although nothing happens.
func (l *loop) next() int64 {
	next := l.timers.next()
	if l.housework > 0 && (next == 0 || l.housework < next) {
		next = l.housework
	}
	return next
}

// mayWait says that the loop goes to wait, unless there are calls.
func (l *loop) mayWait() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits = len(l.calls) == 0
	return l.waits
}

// post has fn done in the loop, soon. It must not be used after the engine's Close.
func (l *loop) post(fn func()) {
	l.mu.Lock()
	l.calls = append(l.calls, fn)
	wake := l.waits
	l.waits = false
	l.mu.Unlock()
	if wake {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		_, _ = unix.Write(int(l.wakeup), one[:]) // cannot fail: nobody writes often enough to fill it
	}
}

// call has fn done in the loop and waits for it.
func (l *loop) call(fn func() error) error {
	result := make(chan error, 1)
	l.post(func() { result <- fn() })
	return <-result
}

func (l *loop) serveCalls() {
	l.mu.Lock()
	l.waits = false
	l.serving, l.calls = l.calls, l.serving[:0]
	l.mu.Unlock()
	for i, fn := range l.serving {
		fn()
		l.serving[i] = nil
	}
}

// handle takes an event to whom it is for. One of this turn's earlier events may have
// closed the descriptor, and another one may have given its number to somebody else.
func (l *loop) handle(e *unix.EpollEvent) {
	if e.Fd == l.wakeup {
		var count [8]byte
		_, _ = unix.Read(int(l.wakeup), count[:])
		return
	}
	switch w := &l.watched[e.Fd]; {
	case w.mark != e.Pad:
	case w.pair != nil:
		w.pair.happened(e.Fd, e.Events)
	case w.acceptor != nil:
		w.acceptor.accept()
	}
}

// watch has the events of fd taken to w.
func (l *loop) watch(fd int32, w watched, events uint32) error {
	for int(fd) >= len(l.watched) {
		l.watched = append(l.watched, make([]watched, max(int(fd)+1-len(l.watched), len(l.watched), 64))...)
	}
	l.marks++
	w.mark = l.marks
	l.watched[fd] = w
	err := l.poller.watch(fd, events, w.mark)
	if err != nil {
		l.watched[fd] = watched{}
	}
	return err
}

// unwatch closes fd, which takes it out of the poller too (epoll(7)). A client that got no
// backend was never watched.
func (l *loop) unwatch(fd int32) {
	if int(fd) < len(l.watched) {
		l.watched[fd] = watched{}
	}
	closeSocket(fd)
}

// goOn gives those their turn that were stopped for the sake of others.
func (l *loop) goOn() {
	waiting := len(l.ready)
	for _, p := range l.ready[:waiting] {
		if p.turn == l.turn {
			l.ready = append(l.ready, p) // it had its turn by an event
			continue
		}
		p.queued = false
		p.advance()
	}
	n := copy(l.ready, l.ready[waiting:])
	clear(l.ready[n:])
	l.ready = l.ready[:n]
}

// takeBuffer gives away what is in scratch, and has another one read into from now on.
func (l *loop) takeBuffer() []byte {
	full := l.scratch
	if n := len(l.buffers); n > 0 {
		l.scratch = l.buffers[n-1]
		l.buffers = l.buffers[:n-1]
	} else {
		l.scratch = make([]byte, bufferSize)
	}
	return full
}

func (l *loop) putBuffer(b []byte) {
	if len(l.buffers) < spareBuffers {
		l.buffers = append(l.buffers, b[:bufferSize])
	}
}

// needHousework has tidy called in a while.
func (l *loop) needHousework() {
	if l.housework == 0 {
		l.housework = l.now + houseworkEvery
	}
}

// tidy does the housework.
func (l *loop) tidy() {
	l.housework = 0
	l.pipes.drop()
	clear(l.buffers)
	l.buffers = l.buffers[:0]
	l.written.look()
	if len(l.written.pairs) > 0 {
		l.needHousework()
	}
}

// abort resets every connection.
func (l *loop) abort() {
	l.aborted = true
	for _, t := range slices.Clone(l.timers) { // those that wait to dial have no socket in watched
		if p, is := t.owner.(*pair); is {
			p.abort(Shutdown, nil, true, true)
		}
	}
	for fd := range l.watched {
		if p := l.watched[fd].pair; p != nil {
			p.abort(Shutdown, nil, true, true)
		}
	}
}
