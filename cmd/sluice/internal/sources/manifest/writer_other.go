//go:build !linux

package manifest

func writerOf(string) writer { return unknown }
