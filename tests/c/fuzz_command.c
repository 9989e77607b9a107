/* The scanner stays inside of its input and its results agree with each other; delivered lines fit a terminal. */
#include <stdlib.h>
#include <string.h>

#include "swx_command.h"

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

/* Undoes the quoting of SWX_DELIVERY_EVAL by the rules of the header, independently of how it was made. */
static void expect_quoted(swx_delivery way, const swx_buf *out, const uint8_t *text, size_t size)
{
    static const char start[] = "\\builtin eval $'", option[] = "\\builtin eval -- $'";
    const uint8_t *at = out->data, *end = at + out->size;
    at += size && text[0] == '-' ? sizeof(option) - 1 : sizeof(start) - 1;
    size_t backslashes = 0;
    while (backslashes < size && text[size - 1 - backslashes] == '\\') {
        backslashes++;
    }
    for (size_t i = 0; i < size + backslashes % 2; i++) {
        if (end - at > 5 && memcmp(at, "'\\\n$'", 5) == 0) {
            at += 5;
        }
        uint8_t c = *at++;
        if (c == '\\') {
            c = *at++;
            if (c >= '0' && c <= '3') {
                c = (uint8_t)((c - '0') << 6 | (at[0] - '0') << 3 | (at[1] - '0'));
                at += 2;
            } else {
                c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
            }
        }
        require(c == (i < size ? text[i] : way == SWX_DELIVERY_DOCUMENT ? '\n' : '\\'));
    }
    require(end - at == 2 && memcmp(at, "'\n", 2) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    swx_scan scan, body;
    uint8_t *text = malloc(size ? size : 1); /* exactly its size, so that the sanitizer sees a byte beyond */
    require(text != NULL);
    if (size) {
        memcpy(text, data, size);
    }
    swx_command_scan(text, size, &scan);
    require(scan.body_start + scan.body_size <= size);
    swx_command_scan(text + scan.body_start, scan.body_size, &body);
    /* without the blank lines after it, a joined line at the end has nothing left to join */
    bool joined = body.body_size > 1 && text[scan.body_start + scan.body_size - 1] == '\n';
    require(scan.verdict == SWX_UNSURE || body.verdict == scan.verdict || joined);
    swx_delivery way = swx_command_delivery(&scan, size & 1, size >> 1 & 7, size & 16);
    if (way != SWX_DELIVERY_NONE && !(scan.flags & SWX_SCAN_NUL)) {
        swx_buf out;
        swx_buf_init(&out, SIZE_MAX / 2);
        require(swx_command_encode(way, text, size, &out) == SWX_OK);
        size_t line = 0;
        for (size_t i = 0; i < out.size; i++) {
            require(++line <= SWX_LINE_MAX || way == SWX_DELIVERY_RAW); /* a raw terminal cuts nothing */
            line = out.data[i] == '\n' ? 0 : line;
        }
        require(line == 0);
        swx_buf_free(&out);
        way = size & 2 ? SWX_DELIVERY_EVAL : SWX_DELIVERY_DOCUMENT;
        require(swx_command_encode(way, text, size, &out) == SWX_OK);
        expect_quoted(way, &out, text, size);
        swx_buf_free(&out);
    }
    free(text);
    return 0;
}
