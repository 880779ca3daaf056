// Reads an HTTP request from standard input as servers in Go do, and prints its fields as a JSON list of names and values.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	request, err := http.ReadRequest(bufio.NewReader(os.Stdin))
	if err != nil {
		log.Fatal(err)
	}
	fields := [][2]string{}
	if strings.Contains(request.Header.Get("Content-Type"), "json") {
		// Fields of a struct match names in any case.
		var body struct {
			Model string `json:"model"`
		}
		if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
			log.Fatal(err)
		}
		fields = append(fields, [2]string{"model", body.Model})
		request.Body = http.NoBody
		request.Header.Del("Content-Type")
		if err := request.ParseForm(); err != nil {
			log.Fatal(err)
		}
	} else if err := request.ParseMultipartForm(1 << 20); err != nil {
		log.Fatal(err)
	}
	// The query is in the form, too.
	for name, values := range request.Form {
		for _, value := range values {
			fields = append(fields, [2]string{name, value})
		}
	}
	if request.MultipartForm != nil {
		for name, files := range request.MultipartForm.File {
			for _, file := range files {
				fields = append(fields, [2]string{name, file.Filename})
			}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(fields); err != nil {
		log.Fatal(err)
	}
}
