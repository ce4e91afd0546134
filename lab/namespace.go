package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Namespace is one network namespace, held by a descriptor. It lives until
// Close, and beyond that only while a process or an open socket is still in it.
// All methods may be called concurrently.
type Namespace struct {
	Name string

	file *os.File
	path string // where the namespace is bound for ip-netns(8); empty: nowhere

	closing  sync.Once
	closeErr error
}

// NewNamespace makes an anonymous network namespace with its loopback up and
// nothing else in it. The caller closes it. It needs CAP_SYS_ADMIN, which a
// program has after [Isolate].
func NewNamespace(name string) (*Namespace, error) {
	n := &Namespace{Name: name}
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return needPrivilege(err)
		}
		file, err := os.Open(threadNamespace)
		if err != nil {
			return err
		}
		n.file = file
		return raiseLoopback()
	})
	if err != nil {
		err = fmt.Errorf("make network namespace %s: %w", name, err)
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// needPrivilege says how to mend a refused namespace.
func needPrivilege(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w (needs CAP_SYS_ADMIN: run as root, or isolate the program first)", err)
	}
	return err
}

// Close lets go of the namespace and takes its name away. The kernel removes it,
// and every interface in it, as soon as no process and no socket is left inside.
// Further calls return what the first returned.
func (n *Namespace) Close() error {
	n.closing.Do(func() {
		var errs []error
		if n.path != "" {
			errs = append(errs, unbind(n.path))
		}
		if n.file != nil {
			errs = append(errs, n.file.Close())
		}
		n.closeErr = errors.Join(errs...)
	})
	return n.closeErr
}

// threadNamespace is the network namespace of the thread that opens it.
const threadNamespace = "/proc/thread-self/ns/net"

// Do runs fn inside the namespace, on a thread of its own, and returns fn's
// error. Sockets and processes made by fn belong to the namespace for good; a
// goroutine started by fn runs outside it. Calls may nest. When fn ends its
// goroutine (as t.FailNow does), Do ends the caller's.
func (n *Namespace) Do(fn func() error) error {
	return onOwnThread(func() error {
		if err := n.enter(); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.Name, err)
		}
		return fn()
	})
}

// enter moves the calling thread into the namespace.
func (n *Namespace) enter() error {
	return setNetwork(n.file)
}

func setNetwork(file *os.File) error {
	// Control keeps the descriptor from being closed, and its number from being
	// used again, while setns looks at it.
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.Setns(int(fd), unix.CLONE_NEWNET)
	})
	return errors.Join(err, setErr)
}

// visit is one call on a thread that may leave its network namespace.
type visit struct {
	fn       func() error
	err      error
	returned bool // fn returned, rather than ending its goroutine
	done     chan struct{}
}

// onOwnThread runs fn locked to a thread and puts the thread back into the
// network namespace it came from.
func onOwnThread(fn func() error) error {
	v := &visit{fn: fn, done: make(chan struct{})}
	go v.run()
	<-v.done
	if !v.returned {
		runtime.Goexit()
	}
	return v.err
}

func (v *visit) run() {
	defer close(v.done)
	runtime.LockOSThread()
	home, err := os.Open(threadNamespace)
	if err != nil {
		runtime.UnlockOSThread()
		v.err, v.returned = fmt.Errorf("find the thread's network namespace: %w", err), true
		return
	}
	defer v.goHome(home)
	v.err = v.fn()
	v.returned = true
}

// goHome puts the thread back. A thread that cannot go back stays locked, and
// ends with this goroutine instead of running other goroutines in the wrong
// namespace.
func (v *visit) goHome(home *os.File) {
	defer home.Close()
	if err := setNetwork(home); err != nil {
		v.err = errors.Join(v.err, fmt.Errorf("leave network namespace: %w", err))
		return
	}
	runtime.UnlockOSThread()
}

// Listen is net.Listen inside the namespace. The caller closes the listener.
func (n *Namespace) Listen(network, address string) (net.Listener, error) {
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket is net.ListenPacket inside the namespace. The caller closes the
// connection.
func (n *Namespace) ListenPacket(network, address string) (net.PacketConn, error) {
	var c net.PacketConn
	err := n.Do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// Dial connects from inside the namespace within timeout. The address is an IP
// literal and a port: names would be looked up outside the namespace. The caller
// closes the connection.
func (n *Namespace) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return n.DialContext(ctx, network, address)
}

// DialContext is Dial with a context, in the form that http.Transport takes.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial from network namespace %s: %w", n.Name, err)
	}
	var c net.Conn
	err := n.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}
