package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kube-splice/kube-splice/config"
)

// settings are what kube-proxy's flags and its configuration file amount to.
type settings struct {
	flags  *kubeProxyFlags
	file   *config.File // nil: there is none
	config *config.Configuration

	// What was asked for by name, without defaults: a zero leaves the kernel's value.
	conntrack config.Conntrack
	oomScore  *int32
}

// settle reads the file, if there is one, and gives it precedence over the flags, as
// kube-proxy does.
func (k *kubeProxyFlags) settle() (*settings, error) {
	if k.hostname != "" && strings.TrimSpace(k.hostname) == "" {
		return nil, usagef("--hostname-override %q: want a name", k.hostname)
	}
	s := &settings{flags: k}
	if k.file == "" {
		s.fromFlags()
	} else if err := s.fromFile(); err != nil {
		return nil, err
	}
	if k.hostname != "" {
		s.config.HostnameOverride = k.hostname
	}
	s.config.HostnameOverride = strings.ToLower(strings.TrimSpace(s.config.HostnameOverride))
	return s, nil
}

func (s *settings) fromFlags() {
	k, c := s.flags, s.flags.config
	s.config = c
	if k.healthzPort == 0 {
		c.HealthzBindAddress = ""
	}
	if k.metricsPort == 0 {
		c.MetricsBindAddress = ""
	}
	config.CompletePorts(c, int(k.healthzPort), int(k.metricsPort))
	if c.Mode == "nftables" { // it has no flags of its own
		to, from, unset := &c.NFTables, &c.IPTables, config.Default().IPTables
		to.SyncPeriod, from.SyncPeriod = from.SyncPeriod, unset.SyncPeriod
		to.MinSyncPeriod, from.MinSyncPeriod = from.MinSyncPeriod, unset.MinSyncPeriod
		to.MasqueradeAll, from.MasqueradeAll = from.MasqueradeAll, unset.MasqueradeAll
	}
	if k.fields.Changed("oom-score-adj") {
		s.oomScore = c.OOMScoreAdj
	}
	s.conntrack = config.ZeroConntrack()
	given := conntrackFlags(&s.conntrack)
	given.VisitAll(func(f *pflag.Flag) {
		if set := k.fields.Lookup(f.Name); set.Changed {
			_ = f.Value.Set(set.Value.String()) // which has been set from text before
		}
	})
}

func (s *settings) fromFile() error {
	k := s.flags
	var err error
	if s.file, err = config.Read(k.file); err != nil {
		return err
	}
	s.config, s.conntrack, s.oomScore = s.file.Config, s.file.Given.Conntrack, s.file.Given.OOMScoreAdj
	if k.logging.Changed("v") {
		s.config.Logging.Verbosity = k.config.Logging.Verbosity
	}
	if k.logging.Changed("logging-format") || k.logging.Changed("log-format") {
		s.config.Logging.Format = k.config.Logging.Format
	}
	return nil
}

// name is how the user knows a field.
func (s *settings) name(field string) string {
	if flag := flagOf[field]; s.file == nil && flag != "" {
		return "--" + flag
	}
	return field
}

// refuse makes one error of faults; nil if there are none.
func (s *settings) refuse(faults []config.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	said := make([]string, len(faults))
	for i, f := range faults {
		said[i] = s.name(f.Field) + " " + f.Problem
	}
	text := strings.Join(said, "; ")
	if s.file != nil {
		return fmt.Errorf("configuration %s: %s", s.flags.file, text)
	}
	return usagef("%s", text)
}

// say logs what may surprise whoever wrote the flags or the file.
func (s *settings) say(log *slog.Logger) {
	if s.file != nil && s.file.Ignored != "" {
		log.Warn("fields of the configuration that are unknown or there twice", "file", s.flags.file, "fields", s.file.Ignored)
	}
	if ignored := s.ignoredFlags(); len(ignored) > 0 {
		log.Warn("flags that count only without --config are ignored", "flags", strings.Join(ignored, " "))
	}
	if unused := s.unused(); len(unused) > 0 {
		log.Info("settings without a meaning here are accepted", "settings", strings.Join(unused, " "))
	}
	if scheduler := s.config.IPVS.Scheduler; !knownBalancer(scheduler) {
		log.Warn("there is no such balancing policy; the default one runs", s.name("ipvs.scheduler"), scheduler)
	}
	if s.file != nil || s.config.Mode != "" {
		log.Info("every proxy mode runs as userspace", "asked", cmp.Or(s.config.Mode, "kube-proxy's default"), "runs", "userspace")
	}
}

// ignoredFlags are those that the file replaces.
func (s *settings) ignoredFlags() []string {
	if s.file == nil {
		return nil
	}
	return append(given(s.flags.fields), given(s.flags.meaningless)...)
}

// unused are the settings without a meaning.
func (s *settings) unused() []string {
	var names []string
	for _, field := range config.Unused(s.config) {
		if gate, is := strings.CutPrefix(field, "featureGates."); is && s.file == nil {
			field = "--feature-gates=" + gate
		}
		names = append(names, s.name(field))
	}
	return names
}

// given returns the flags of a set that were given.
func given(set *pflag.FlagSet) []string {
	var names []string
	set.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			names = append(names, "--"+f.Name)
		}
	})
	return names
}
