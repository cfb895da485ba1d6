// Command load is the endpoint and the clients of test-deb and figures.
//
//	load serve ADDRESS:PORT              answers there
//	load once ADDRESS:PORT               asks once
//	load run ADDRESS:PORT                asks 200 times a second and downloads, until SIGTERM
//	load start ADDRESS:PORT PROGRAM...   starts the program, and prints after how many ms it serves there
//
// "run" prints what was asked and what was lost, and fails if anything was.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	rate      = 200                   // connections a second
	downloads = 2                     // at a time
	pieces    = 500                   // of a download
	pace      = 20 * time.Millisecond // between pieces, so that a download takes 10 s
	patience  = 30 * time.Second      // for one connection
)

// piece returns a part of a download, which no other is equal to.
func piece(i int) []byte {
	sum := sha256.Sum256([]byte(strconv.Itoa(i)))
	return bytes.Repeat(sum[:], 512)
}

// whole returns what a download has to be.
func whole() []byte {
	h := sha256.New()
	for i := range pieces {
		h.Write(piece(i))
	}
	return h.Sum(nil)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 2 && args[0] == "once":
		return ask(args[1])
	case len(args) > 2 && args[0] == "start":
		return start(args[1], args[2:])
	case len(args) == 2 && args[0] == "run":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		return load(ctx, args[1])
	}
	return errors.New("usage: load serve ADDRESS | once ADDRESS | run ADDRESS | start ADDRESS PROGRAM")
}

func serve(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go answer(c)
	}
}

// answer answers one connection. The client notices what goes wrong.
func answer(c net.Conn) {
	defer c.Close()
	question := make([]byte, 4)
	if _, err := io.ReadFull(c, question); err != nil {
		return
	}
	if string(question) != "long" {
		_, _ = c.Write([]byte("ok"))
		return
	}
	ticks := time.NewTicker(pace)
	defer ticks.Stop()
	for i := range pieces {
		if _, err := c.Write(piece(i)); err != nil {
			return
		}
		<-ticks.C
	}
}

// exchange sends a question and returns the whole answer's hash and length.
func exchange(address, question string) (sum []byte, n int64, err error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, 0, err
	}
	if _, err := c.Write([]byte(question)); err != nil {
		return nil, 0, err
	}
	h := sha256.New()
	n, err = io.Copy(h, c)
	return h.Sum(nil), n, err
}

func ask(address string) error {
	sum, n, err := exchange(address, "ask ")
	if want := sha256.Sum256([]byte("ok")); err == nil && !bytes.Equal(sum, want[:]) {
		err = fmt.Errorf("another answer, of %d bytes", n)
	}
	return err
}

// start runs a program until it serves a first connection, and ends it.
func start(address string, program []string) error {
	cmd := exec.Command(program[0], program[1:]...)
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	err := ask(address)
	for ; err != nil && time.Since(began) < patience; err = ask(address) {
		<-ticks.C
	}
	took := time.Since(began)
	_ = cmd.Process.Kill() // it has ended, or Wait ends
	_ = cmd.Wait()
	if err == nil {
		fmt.Println(took.Milliseconds())
	}
	return err
}

func download(address string, want []byte) error {
	sum, n, err := exchange(address, "long")
	if err == nil && !bytes.Equal(sum, want) {
		err = fmt.Errorf("another download, of %d bytes", n)
	}
	return err
}

// tally counts what was asked for and what was lost.
type tally struct {
	mu            sync.Mutex
	asked, loaded int
	errors        []error
	began         time.Time
}

func (t *tally) add(count *int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*count++
	if err != nil {
		t.errors = append(t.errors, err)
	}
}

func load(ctx context.Context, address string) error {
	want, t := whole(), &tally{began: time.Now()}
	var clients sync.WaitGroup
	for range downloads {
		clients.Go(func() {
			for ctx.Err() == nil {
				t.add(&t.loaded, download(address, want))
			}
		})
	}
	clients.Go(func() {
		for i := 0; ctx.Err() == nil; i++ { // late ones follow at once, so that the rate is the same after a pause
			<-time.After(time.Until(t.began.Add(time.Duration(i) * time.Second / rate)))
			clients.Go(func() { t.add(&t.asked, ask(address)) })
		}
	})
	fmt.Println("load: running")
	<-ctx.Done()
	took := time.Since(t.began)
	clients.Wait()
	for _, err := range t.errors[:min(10, len(t.errors))] {
		fmt.Println("load: lost:", err)
	}
	fmt.Printf("load: %d connections in %.1f s and %d downloads of %d MB: %d lost\n", t.asked, took.Seconds(), t.loaded,
		pieces*len(piece(0))>>20, len(t.errors))
	if len(t.errors) > 0 {
		return errors.New("connections were lost")
	}
	if enough := took.Seconds() * rate * 0.9; float64(t.asked) < enough {
		return fmt.Errorf("only %d connections, want %.0f: the machine is too slow", t.asked, enough)
	}
	return nil
}
