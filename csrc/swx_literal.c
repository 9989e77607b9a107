/* Aho-Corasick.  A row's number is its offset in the table, so that a step is one addition and one load. */
#include "swx_literal.h"

#include <string.h>

#include "swx_alloc.h"

#define HIT 0x80000000u /* set in a table entry that leads to a node where a pattern ends */

typedef struct {
    uint32_t pattern; /* + 1; 0 is none */
    uint32_t length;
} ending;

struct swx_literal {
    uint32_t *table;
    ending *endings; /* per node */
    size_t columns, nodes;
    uint8_t column[256]; /* 0: bytes of no pattern */
    swx_skip skip;
    uint32_t row;
    uint64_t offset;
};

static void make_columns(swx_literal *literal, const swx_pattern *patterns, size_t count)
{
    bool used[256] = { false };
    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0; at < patterns[i].size; at++) {
            used[patterns[i].bytes[at]] = true;
        }
    }
    unsigned all = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        all += used[byte];
    }
    literal->columns = all < 256; /* column 0 stands for the rest, where there is one */
    for (unsigned byte = 0; byte < 256; byte++) {
        if (used[byte]) {
            literal->column[byte] = (uint8_t)literal->columns++;
        }
    }
}

static void insert(swx_literal *literal, swx_pattern pattern, uint32_t index)
{
    size_t node = 0;
    for (size_t i = 0; i < pattern.size; i++) {
        uint32_t *next = &literal->table[node * literal->columns + literal->column[pattern.bytes[i]]];
        if (*next == 0) {
            *next = (uint32_t)literal->nodes++;
        }
        node = *next;
    }
    if (!literal->endings[node].pattern) {
        literal->endings[node] = (ending){ index + 1, (uint32_t)pattern.size };
    }
}

/* Breadth first: a node's failure node is nearer to the root, so its row is complete. */
static void link_failures(swx_literal *literal, uint32_t *queue, uint32_t *failure)
{
    size_t head = 0, tail = 0, columns = literal->columns;
    queue[tail++] = 0;
    while (head < tail) {
        uint32_t node = queue[head++];
        for (size_t column = 0; column < columns; column++) {
            uint32_t *next = &literal->table[node * columns + column];
            uint32_t fallback = node ? literal->table[failure[node] * columns + column] : 0;
            if (*next == 0) {
                *next = fallback;
                continue;
            }
            failure[*next] = fallback;
            if (!literal->endings[*next].pattern) {
                literal->endings[*next] = literal->endings[fallback];
            }
            queue[tail++] = *next;
        }
    }
}

/* Node numbers become offsets of rows, with HIT where a pattern ends. */
static void number_rows(swx_literal *literal)
{
    for (size_t i = 0; i < literal->nodes * literal->columns; i++) {
        uint32_t node = literal->table[i];
        literal->table[i] = node * (uint32_t)literal->columns | (literal->endings[node].pattern ? HIT : 0);
    }
}

static void make_skip(swx_literal *literal, const swx_pattern *patterns, size_t count)
{
    swx_skip_init(&literal->skip);
    for (size_t i = 0; i < count; i++) {
        swx_byte_set sets[SWX_SKIP_DEPTH];
        memset(sets, 0, sizeof(sets));
        for (size_t depth = 0; depth < SWX_SKIP_DEPTH; depth++) {
            if (depth < patterns[i].size) {
                swx_byte_set_add(&sets[depth], patterns[i].bytes[depth]);
            } else {
                memset(&sets[depth], 0xFF, sizeof(sets[depth]));
            }
        }
        swx_skip_add(&literal->skip, sets);
    }
    swx_skip_finish(&literal->skip);
}

static swx_status build(swx_literal *literal, const swx_pattern *patterns, size_t count, size_t most)
{
    uint32_t *work = swx_calloc(2 * most, sizeof(*work));
    literal->table = swx_calloc(most * literal->columns, sizeof(*literal->table));
    literal->endings = swx_calloc(most, sizeof(*literal->endings));
    bool good = work && literal->table && literal->endings;
    if (good) {
        literal->nodes = 1;
        for (size_t i = 0; i < count; i++) {
            insert(literal, patterns[i], (uint32_t)i);
        }
        link_failures(literal, work, work + most);
        number_rows(literal);
        make_skip(literal, patterns, count);
    }
    swx_free(work);
    return good ? SWX_OK : SWX_ENOMEM;
}

swx_status swx_literal_new(swx_literal **out, const swx_pattern *patterns, size_t count)
{
    swx_status status = SWX_ENOMEM;
    size_t most = 1;
    swx_literal *literal = swx_calloc(1, sizeof(*literal));
    *out = NULL;
    if (!literal) {
        return SWX_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        most += patterns[i].size;
    }
    make_columns(literal, patterns, count);
    status = most > SWX_LITERAL_MAX_TABLE / 4 / literal->columns ? SWX_ELIMIT : build(literal, patterns, count, most);
    if (status != SWX_OK) {
        swx_literal_free(literal);
        return status;
    }
    *out = literal;
    return SWX_OK;
}

void swx_literal_free(swx_literal *literal)
{
    if (literal) {
        swx_free(literal->table);
        swx_free(literal->endings);
        swx_free(literal);
    }
}

void swx_literal_reset(swx_literal *literal, uint64_t offset)
{
    literal->row = 0;
    literal->offset = offset;
}

swx_status swx_literal_feed(swx_literal *literal, const uint8_t *bytes, size_t size, size_t *consumed, swx_hit *hit)
{
    const uint32_t *table = literal->table;
    uint32_t row = literal->row;
    bool skip = literal->skip.useful;
    for (size_t at = 0; at < size;) {
        if (row == 0 && skip) {
            at = swx_skip_find(&literal->skip, bytes, at, size);
            if (at == size) {
                break;
            }
        }
        do {
            row = table[row + literal->column[bytes[at++]]];
        } while (at < size && row - 1 < HIT - 1); /* neither the root nor a hit */
        if (row & HIT) {
            ending found = literal->endings[(row & ~HIT) / literal->columns];
            uint64_t end = literal->offset + at;
            *hit = (swx_hit){ found.pattern - 1, end - found.length, end };
            swx_literal_reset(literal, end);
            *consumed = at;
            return SWX_OK;
        }
    }
    literal->row = row;
    literal->offset += size;
    *consumed = size;
    return SWX_MORE;
}
