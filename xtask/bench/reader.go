// Reads one file and exits 0: what a probe written in Go costs at the least.
package main

import "os"

func main() {
	if _, err := os.ReadFile(os.Args[1]); err != nil {
		os.Exit(1)
	}
}
