package main

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// holdAtMost makes the given capabilities, as far as this process has them, the only
// ones that it and the programs it starts can ever have.
func holdAtMost(kept []cap.Value) error {
	have := permitted()
	kept = slices.DeleteFunc(slices.Clone(kept), func(v cap.Value) bool { return !slices.Contains(have, v) })
	// Without this, root's children would have the whole bounding set again, which
	// only CAP_SETPCAP can lower.
	_, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1)
	errs := []error{nameError("set no_new_privs", err)}
	if slices.Contains(have, cap.SETPCAP) {
		errs = append(errs, lowerBoundingSet(kept))
	}
	return errors.Join(append(errs, holdInAllSets(kept))...)
}

// lowerBoundingSet takes everything else out of the bounding set.
func lowerBoundingSet(kept []cap.Value) error {
	if err := setEffective([]cap.Value{cap.SETPCAP}); err != nil {
		return err
	}
	var dropped []cap.Value
	for v := range cap.MaxBits() {
		if in, err := cap.GetBound(v); err == nil && in && !slices.Contains(kept, v) {
			dropped = append(dropped, v)
		}
	}
	return nameError("lower the bounding set", cap.DropBound(dropped...))
}

// holdInAllSets makes the permitted, effective, inheritable and ambient sets of every
// thread the given one, which must be permitted. Ambient capabilities are those that a
// program has which is started by another user than root.
func holdInAllSets(kept []cap.Value) error {
	set := cap.NewSet()
	for _, flag := range []cap.Flag{cap.Permitted, cap.Effective, cap.Inheritable} {
		if err := set.SetFlag(flag, true, kept...); err != nil {
			return err
		}
	}
	// The kernel takes out of the ambient set what leaves the others.
	if err := set.SetProc(); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nameError("set ambient capabilities", cap.SetAmbient(true, kept...))
}

// setEffective puts only the given capabilities into effect, of those permitted.
func setEffective(values []cap.Value) error {
	set := cap.GetProc()
	if err := set.ClearFlag(cap.Effective); err != nil {
		return err
	}
	for _, v := range permitted() {
		if slices.Contains(values, v) {
			if err := set.SetFlag(cap.Effective, true, v); err != nil {
				return err
			}
		}
	}
	return nameError("set effective capabilities", set.SetProc())
}

// permitted are the capabilities this process has.
func permitted() (have []cap.Value) {
	set := cap.GetProc()
	for v := range cap.MaxBits() {
		if has, err := set.GetFlag(cap.Permitted, v); err == nil && has {
			have = append(have, v)
		}
	}
	return have
}

func nameError(doing string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}
