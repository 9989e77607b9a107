#include "swx_marks.h"

#include "harness.h"

/* What a stream said, in one text: plain bytes as they are, marks as <kind:code:number:jobs>. */
typedef struct {
    char text[8192];
    size_t size;
} story;

static void tell(swx_marks *marks, const uint8_t *bytes, size_t size, story *out)
{
    for (;;) {
        const uint8_t *plain;
        size_t plain_size;
        swx_mark mark;
        switch (swx_marks_next(marks, &bytes, &size, &plain, &plain_size, &mark)) {
        case SWX_MARKS_MORE: CHECK(size == 0); return;
        case SWX_MARKS_PLAIN:
            CHECK(plain_size > 0 && out->size + plain_size < sizeof(out->text));
            memcpy(out->text + out->size, plain, plain_size);
            out->size += plain_size;
            break;
        case SWX_MARKS_MARK:
            out->size += (size_t)sprintf(out->text + out->size, "<%d:%d:%lu:%u:%d>", (int)mark.kind, mark.code,
                                         (unsigned long)mark.number, mark.jobs, mark.no_stderr);
            break;
        }
    }
}

static void expect_story(swx_marks *marks, const char *bytes, size_t size, const char *wanted)
{
    for (size_t chunk = 1; chunk <= size; chunk++) {
        story got = { .size = 0 };
        marks->held_size = marks->released = 0;
        for (size_t at = 0; at < size; at += chunk) {
            size_t n = size - at < chunk ? size - at : chunk;
            uint8_t *exact = malloc(n); /* so that a read past the chunk is seen */
            memcpy(exact, bytes + at, n);
            tell(marks, exact, n, &got);
            free(exact);
        }
        got.text[got.size] = 0;
        if (strcmp(got.text, wanted) != 0) {
            fprintf(stderr, "chunk %zu: got %s wanted %s\n", chunk, got.text, wanted);
            exit(1);
        }
    }
}

static void test_marks_in_output(void)
{
    swx_marks marks;
    char bytes[2048], h[64], start[64];
    CHECK(swx_marks_init(&marks, false, NULL) == SWX_OK);
    snprintf(h, sizeof(h), "\033]7733;%s;", marks.nonce);
    snprintf(start, sizeof(start), "\033]7733;%s", marks.start);
    int size = snprintf(
        bytes, sizeof(bytes),
        "a%s\007b\n%s1;130;17;2;70;60\007%s1;$?;1;0;${#PS1};${PS0-}\007c%s2;7\007%s3;1\007x%s4\007y%s5;1\007%s5;0\007z",
        start, h, h, h, h, h, h, h);
    expect_story(&marks, bytes, (size_t)size,
                 "a<0:-1:0:0:0>b\n<1:130:17:2:0><1:-1:1:0:0>c<2:7:0:0:0><3:1:0:0:0>x<4:-1:0:0:0>y<5:-1:0:0:0>"
                 "<5:-1:0:0:1>z");
}

static void test_what_is_not_a_mark_is_output(void)
{
    swx_marks marks;
    char h[64], bytes[4096];
    CHECK(swx_marks_init(&marks, false, NULL) == SWX_OK);
    snprintf(h, sizeof(h), "\033]7733;%s;", marks.nonce);
    const char *forms[] = { "%s1;1;1;1\007",
                            "%s1;1;1;1;\007",
                            "%s1;1;1;1;5\007",
                            "%s9\007",
                            "%s1\007",
                            "%s0\007",
                            "%s1;256;1;1\007",
                            "%s1;1;1;1;1\007",
                            "%s1;1;x;1\007",
                            "%s\007",
                            "%s0",
                            "%s0\033",
                            "%s1;0;1\n;0\007",
                            "\033%s0x\007",
                            "%s3;1;0\007",
                            "%s1;-1;1;1\007",
                            "%s1;99999999999999999999;1;1\007" };
    for (size_t i = 0; i < SWX_COUNT(forms); i++) {
        int size = snprintf(bytes, sizeof(bytes), forms[i], h);
        strcat(bytes, "end\n"); /* what is held back comes out as soon as it cannot be a mark */
        expect_story(&marks, bytes, (size_t)size + 4, bytes);
    }
    for (int digits = 0; digits <= SWX_NONCE_DIGITS; digits++) { /* only all of the right ones are a START mark */
        int size = snprintf(bytes, sizeof(bytes), "\033]7733;%.*s\007", digits, marks.nonce);
        expect_story(&marks, bytes, (size_t)size, bytes);
    }
    for (int digits = 0; digits <= SWX_START_DIGITS + 1; digits++) {
        char start[32];
        snprintf(start, sizeof(start), "%s0", marks.start);
        int size = snprintf(bytes, sizeof(bytes), "\033]7733;%.*s\007", digits, start);
        expect_story(&marks, bytes, (size_t)size, digits == SWX_START_DIGITS ? "<0:-1:0:0:0>" : bytes);
    }
    snprintf(bytes, sizeof(bytes), "%s", h);
    bytes[20] = bytes[20] == '1' ? '2' : '1'; /* another nonce */
    strcat(bytes, "0\007");
    expect_story(&marks, bytes, strlen(bytes), bytes);
    memset(bytes, '5', sizeof(bytes)); /* a mark that does not end */
    memcpy(bytes, h, strlen(h));
    bytes[300] = '\n';
    bytes[301] = 0;
    expect_story(&marks, bytes, 301, bytes);
}

static void test_texts_do_not_match_themselves(void)
{
    swx_marks marks;
    char text[2 * SWX_MARKS_TEXT + 2];
    CHECK(swx_marks_init(&marks, false, NULL) == SWX_OK);
    CHECK(strlen(marks.ps1) < SWX_MARKS_TEXT - 1 && strstr(marks.ps0, marks.nonce) == NULL);
    snprintf(text, sizeof(text), "%s%s", marks.ps0, marks.ps1);
    expect_story(&marks, text, strlen(text), text);
    CHECK(strlen(marks.nonce) == SWX_NONCE_DIGITS && strlen(marks.start) == SWX_START_DIGITS);
}

static swx_mark only_mark(swx_marks *marks, const char *text, size_t size)
{
    const uint8_t *bytes = (const uint8_t *)text, *plain;
    size_t plain_size;
    swx_mark mark;
    CHECK(swx_marks_next(marks, &bytes, &size, &plain, &plain_size, &mark) == SWX_MARKS_MARK && size == 0);
    return mark;
}

/* A prompt's mark shows what PS0 is: as it was given, another one of any bytes, or none. */
static void test_changed_ps0(void)
{
    swx_marks marks;
    char bytes[256];
    CHECK(swx_marks_init(&marks, false, NULL) == SWX_OK);
    const char *texts[] = { marks.ps0, "", "\\e]7733;012345\\a", "two\nlines; and \303\244", marks.nonce, "x" };
    for (size_t i = 0; i < SWX_COUNT(texts); i++) {
        int size = snprintf(bytes, sizeof(bytes), "\033]7733;%s;1;7;17;2;%zu;%s\007", marks.nonce,
                            strlen(marks.ps1) + 1 - i % 2, texts[i]);
        swx_mark mark = only_mark(&marks, bytes, (size_t)size);
        CHECK(mark.kind == SWX_MARK_PROMPT && mark.code == 7 && mark.ps1_kept == (i % 2) && mark.ps0_kept == (i == 0));
    }
    int size = snprintf(bytes, sizeof(bytes), "\033]7733;%s;1;7;17;2;70;%s ", marks.nonce, marks.ps0); /* and a NUL */
    bytes[size] = '\007';
    bytes[size - 1] = 0;
    CHECK(!only_mark(&marks, bytes, (size_t)size + 1).ps0_kept);
}

static void test_nonces_differ(void)
{
    swx_marks a, b;
    CHECK(swx_marks_init(&a, false, NULL) == SWX_OK && swx_marks_init(&b, false, NULL) == SWX_OK);
    CHECK(strcmp(a.nonce, b.nonce) != 0 && strcmp(a.start, b.start) != 0);
    char seen[256] = { 0 };
    for (int i = 0; i < 1000; i++) { /* each digit at each place: no bit of what was drawn is lost */
        char both[SWX_NONCE_DIGITS + SWX_START_DIGITS + 1];
        CHECK(swx_marks_init(&b, false, NULL) == SWX_OK && strlen(b.nonce) == SWX_NONCE_DIGITS &&
              strlen(b.start) == SWX_START_DIGITS);
        CHECK(b.nonce[0] != b.start[0]);
        snprintf(both, sizeof(both), "%s%s", b.nonce, b.start);
        for (size_t at = 0; at < sizeof(both) - 1; at++) {
            CHECK((both[at] >= '0' && both[at] <= '9') || (both[at] >= 'A' && both[at] <= 'V'));
            seen[(uint8_t)both[at]] |= at == 0 ? 1 : at == SWX_NONCE_DIGITS ? 2 : at == sizeof(both) - 2 ? 4 : 0;
        }
    }
    for (const char *digit = "0123456789ABCDEFGHIJKLMNOPQRSTUV"; *digit; digit++) {
        CHECK(seen[(uint8_t)*digit] == 7);
    }
}

static void test_held_back_is_bounded(void)
{
    swx_marks marks;
    CHECK(swx_marks_init(&marks, false, NULL) == SWX_OK);
    story got = { .size = 0 };
    tell(&marks, marks.head, SWX_MARKS_HEAD, &got);
    CHECK(got.size == 0);
    for (int i = 0; i < 1000; i++) {
        tell(&marks, (const uint8_t *)"7", 1, &got);
        CHECK(marks.held_size <= SWX_MARK_MAX);
    }
    CHECK(got.size + marks.held_size == SWX_MARKS_HEAD + 1000);
}

TEST_MAIN(test_marks_in_output, test_changed_ps0, test_what_is_not_a_mark_is_output, test_texts_do_not_match_themselves,
          test_nonces_differ, test_held_back_is_bounded)
