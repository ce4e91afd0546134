package main

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// ruleWriter is what the daemon asks of package redirect.
type ruleWriter interface {
	Sync(context.Context, redirect.Rules) error
	Intact(context.Context) (bool, error)
	Counts() []redirect.TableCount
	MayPreserve(client, endpoint netip.Addr) bool
}

// daemon is the loop that brings each Snapshot to the listeners and then to the
// rules: listeners are opened before rules lead to them, and closed after no rule
// does. Rules are written by one job at a time in a goroutine of its own, so that
// slow iptables programs never hold up a change of endpoints, which needs no rule.
type daemon struct {
	proxy     *proxy.Proxy
	rules     ruleWriter                                  // nil: there are none
	pods      func(*service.Snapshot) redirect.PodTraffic // how packets of pods are told; nil: they are not
	observer  *observer
	period    time.Duration
	minPeriod time.Duration
	ready     func() // called once, when the first Snapshot is served
	log       *slog.Logger

	snap    *service.Snapshot // the latest; nil before the first
	want    redirect.Rules    // what its listeners call for
	dirty   bool              // want differs from what was last written
	settled bool              // it was said that everything is in place

	job      chan outcome // of the job that runs; nil when none does
	syncAt   time.Time    // no writing before
	checkAt  time.Time    // look whether the rules are all there
	fullAt   time.Time    // read all rules back
	openAt   time.Time    // try again what could not be opened; zero: nothing
	syncWait backoff
	openWait backoff
	lookWait backoff
	trouble  string    // the error that was last said
	damageAt time.Time // when it was last said that rules no longer fitted
}

// outcome is what came of a job.
type outcome struct {
	synced   bool // else they were only looked at, and all there
	full     bool // any rule might have to be written, else only those that changed
	repaired bool
	took     time.Duration
	counts   []redirect.TableCount // of rules, after they were written
	err      error
}

// Looks at the jumps come at the first interval, and at up to the longest while
// each finds damage: another program that insists on being first would have us
// move rules for ever. The pause is between two warnings of that.
const (
	lookInterval     = 5 * time.Second
	longestLookPause = time.Minute
	damagePause      = 10 * time.Minute
)

// run is the daemon loop. It returns when ctx ends and the job that runs then has
// ended too.
func (d *daemon) run(ctx context.Context, snapshots <-chan *service.Snapshot) {
	d.syncWait = backoff{least: 200 * time.Millisecond, most: 10 * time.Second}
	d.openWait = backoff{least: time.Second, most: 10 * time.Second}
	d.lookWait = backoff{least: min(lookInterval, d.period), most: longestLookPause}
	for {
		timer := time.NewTimer(d.startDue(ctx))
		select {
		case snap := <-snapshots:
			d.snap = snap
			d.observer.queued(snap)
			d.open()
		case out := <-d.job:
			d.finish(ctx, out)
		case <-timer.C:
		case <-ctx.Done():
			if d.job != nil {
				<-d.job
			}
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// startDue does what is due and returns how long nothing else will be.
func (d *daemon) startDue(ctx context.Context) time.Duration {
	const forever = time.Hour
	if d.snap == nil {
		return forever
	}
	now := time.Now()
	if !d.openAt.IsZero() && !now.Before(d.openAt) {
		d.open()
	}
	next := now.Add(forever)
	if !d.openAt.IsZero() {
		next = d.openAt
	}
	switch {
	case d.rules == nil || d.job != nil:
	case d.dirty && !now.Before(d.syncAt):
		d.start(ctx, d.sync(d.fullAt.IsZero() || d.trouble != ""))
	case d.dirty:
		next = earlier(next, d.syncAt)
	case !now.Before(d.fullAt):
		d.start(ctx, d.sync(true))
	case !now.Before(d.checkAt):
		d.start(ctx, d.look)
	default:
		next = earlier(next, earlier(d.checkAt, d.fullAt))
	}
	return time.Until(next)
}

// open brings the listeners to the latest Snapshot.
func (d *daemon) open() {
	opened := d.proxy.Open(d.snap)
	d.openAt = time.Time{}
	if opened.Failed > 0 {
		d.openAt = time.Now().Add(d.openWait.next())
	} else {
		d.openWait.reset()
	}
	want := redirect.Rules{Bindings: opened.Bindings, NodeIPs: d.snap.NodeIPs, Preserve: preserving(d.snap)}
	if d.pods != nil {
		want.Pods = d.pods(d.snap)
	}
	if d.rules == nil {
		d.want = want
		d.settle()
		return
	}
	first := d.fullAt.IsZero()
	if first || !want.Equal(d.want) {
		d.want, d.dirty = want, true
	} else if !d.dirty && d.job == nil {
		d.settle() // there are no rules to wait for
	}
}

// settle ends the work for a Snapshot whose rules are in force: what nothing leads
// to any more is closed. What could not be opened may have waited for just that.
func (d *daemon) settle() {
	if d.proxy.Prune() && !d.openAt.IsZero() {
		d.openAt = time.Now()
	}
	d.observer.inForce(d.snap)
	if !d.settled {
		d.settled = true
		d.ready()
		d.log.Info("ready", "service ports", len(d.snap.Ports), "portals", len(d.want.Bindings), "failed", d.proxy.Counts().Failing)
	}
}

// longJob is after how long a job is said to be at work. It is not ended: nobody knows
// how long many rules take on a slow machine, and /livez tells of updates that wait.
const longJob = 10 * time.Second

// start runs a job in its own goroutine.
func (d *daemon) start(ctx context.Context, job func(context.Context, redirect.Rules) outcome) {
	want, done := d.want, make(chan outcome, 1)
	d.dirty = false
	d.job = done
	long := time.AfterFunc(longJob, func() {
		d.log.Warn("iptables programs are still at work on the rules; should one hang, end it, and it is run again", "after", longJob)
	})
	go func() {
		defer long.Stop()
		done <- job(ctx, want)
	}()
}

// sync returns the job that writes the rules: full says that any may need it, and not
// only those that changed.
func (d *daemon) sync(full bool) func(context.Context, redirect.Rules) outcome {
	return func(ctx context.Context, want redirect.Rules) outcome {
		started := time.Now()
		err := d.rules.Sync(ctx, want)
		return outcome{synced: true, full: full, took: time.Since(started), counts: d.rules.Counts(), err: err}
	}
}

// look writes the rules only if some are missing.
func (d *daemon) look(ctx context.Context, want redirect.Rules) outcome {
	intact, err := d.rules.Intact(ctx)
	if err != nil || intact {
		return outcome{err: err}
	}
	out := d.sync(true)(ctx, want)
	out.repaired = true
	return out
}

// finish takes the outcome of a job. When the rules are those of the latest
// Snapshot, what only older rules led to can be closed.
func (d *daemon) finish(ctx context.Context, out outcome) {
	d.job = nil
	now := time.Now()
	if out.synced && ctx.Err() == nil {
		d.observer.synced(out)
	}
	if out.err != nil {
		d.dirty = true
		d.syncAt = now.Add(d.syncWait.next())
		if ctx.Err() == nil && out.err.Error() != d.trouble {
			d.log.Error("rules could not be written; trying again", "error", oneLine(out.err))
			d.trouble = out.err.Error()
		}
		return
	}
	if d.trouble != "" {
		d.log.Info("rules are written again")
		d.trouble = ""
	}
	if out.repaired && now.Sub(d.damageAt) >= damagePause {
		d.log.Warn("rules no longer fitted (removed or moved by another program, or the node's address changed); written again")
		d.damageAt = now
	}
	d.syncWait.reset()
	d.syncAt, d.checkAt = now.Add(d.minPeriod), d.nextLook(now, out)
	if out.synced {
		d.fullAt = now.Add(d.period)
	}
	if !d.dirty {
		d.settle()
	} else if out.synced {
		d.observer.behind()
	}
}

// nextLook is when to look at the jumps after this outcome. A writing that was due
// anyway needs no look at once, and puts off none that is far.
func (d *daemon) nextLook(now time.Time, out outcome) time.Time {
	switch soon := now.Add(d.lookWait.least); {
	case out.repaired:
		return now.Add(d.lookWait.next())
	case out.synced && d.checkAt.After(soon):
		return d.checkAt
	case out.synced:
		return soon
	default:
		d.lookWait.reset()
		return soon
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// backoff is a pause that doubles from the least to the most.
type backoff struct{ least, most, last time.Duration }

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, b.least), b.most)
	return b.last
}

func (b *backoff) reset() { b.last = 0 }
