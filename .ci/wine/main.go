// Command wine writes bcryptprimitives.dll, which Go programs need at start and wine 8
// does not have: a PE32+ library without code, whose one export, ProcessPrng, is
// forwarded to SystemFunction036 (RtlGenRandom) of advapi32.dll, which wine has and which
// does the same (pecoff, section 6.3, "Forwarder RVA").
//
//	go run ./.ci/wine PATH
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

const (
	headerSize = 0x200  // in the file, and of the only section too
	sectionRVA = 0x1000 // where the section is loaded
	imageSize  = 0x2000

	amd64        = 0x8664
	optionalSize = 240
	flags        = 0x2022 // executable image, large addresses, DLL
	directories  = 16
	readData     = 0x40000040 // initialised data, readable
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "wine: give the path of the file to write")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], library(), 0o644); err != nil {
		fmt.Fprintf(os.Stderr, "wine: %v\n", err)
		os.Exit(1)
	}
}

// put appends values as they lie in memory.
func put(b *bytes.Buffer, values ...any) {
	for _, v := range values {
		_ = binary.Write(b, binary.LittleEndian, v) // cannot fail on a buffer
	}
}

func library() []byte {
	exports := exportSection()
	var b bytes.Buffer
	b.WriteString("MZ")
	b.Write(make([]byte, 58))
	put(&b, uint32(64)) // where the PE header is
	b.WriteString("PE\x00\x00")
	put(&b, uint16(amd64), uint16(1), uint32(0), uint32(0), uint32(0), uint16(optionalSize), uint16(flags))
	// Optional header: PE32+, no code; base, alignment of sections and of the file, versions.
	put(&b, uint16(0x20b), uint8(1), uint8(0), uint32(0), uint32(headerSize), uint32(0), uint32(0), uint32(sectionRVA))
	put(&b, uint64(0x180000000), uint32(0x1000), uint32(headerSize), uint16(6), uint16(0))
	put(&b, uint16(0), uint16(0), uint16(6), uint16(0), uint32(0))
	// Sizes of image and headers, checksum, console, data not executable; stack and heap.
	put(&b, uint32(imageSize), uint32(headerSize), uint32(0), uint16(3), uint16(0x100))
	put(&b, uint64(1<<20), uint64(1<<12), uint64(1<<20), uint64(1<<12), uint32(0), uint32(directories))
	put(&b, uint32(sectionRVA), uint32(len(exports))) // the first directory is that of exports
	b.Write(make([]byte, (directories-1)*8))
	b.WriteString(".edata\x00\x00")
	put(&b, uint32(len(exports)), uint32(sectionRVA), uint32(headerSize), uint32(headerSize), uint32(0), uint32(0))
	put(&b, uint16(0), uint16(0), uint32(readData))
	b.Write(make([]byte, headerSize-b.Len()))
	b.Write(exports)
	b.Write(make([]byte, 2*headerSize-b.Len()))
	return b.Bytes()
}

// exportSection is the export directory, its three tables of one entry each, and the strings.
func exportSection() []byte {
	const directory, address, name, ordinal = 40, 4, 4, 2
	var text bytes.Buffer
	str := func(s string) uint32 {
		rva := uint32(sectionRVA + directory + address + name + ordinal + text.Len())
		text.WriteString(s + "\x00")
		return rva
	}
	library, export, forward := str("bcryptprimitives.dll"), str("ProcessPrng"), str("advapi32.SystemFunction036")
	var b bytes.Buffer
	put(&b, uint32(0), uint32(0), uint32(0), library, uint32(1), uint32(1), uint32(1),
		uint32(sectionRVA+directory), uint32(sectionRVA+directory+address), uint32(sectionRVA+directory+address+name))
	put(&b, forward, export, uint16(0))
	b.Write(text.Bytes())
	return b.Bytes()
}
