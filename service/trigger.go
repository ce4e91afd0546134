package service

import "time"

// Trigger is a change of a Service's endpoints in one IP family, as the API server
// dates it. It serves to measure how long such a change takes to be in force.
type Trigger struct {
	Family Family
	At     time.Time
}

// MostTriggers bounds the triggers that anybody keeps while they cannot be measured.
const MostTriggers = 10_000

// Triggered returns s with what triggered it, or s itself if that is nothing.
func (s *Snapshot) Triggered(by []Trigger) *Snapshot {
	if len(by) == 0 {
		return s
	}
	triggered := *s
	triggered.Triggers = by
	return &triggered
}

// InPlaceOf returns s with the triggers of a Snapshot before it that nobody looked at.
func (s *Snapshot) InPlaceOf(missed *Snapshot) *Snapshot {
	all := append(missed.Triggers[:len(missed.Triggers):len(missed.Triggers)], s.Triggers...)
	return s.Triggered(all[:min(len(all), MostTriggers)])
}
