/*
 * mockserver: the reference server for accuracy and cost measurements.
 *
 * Speaks OpenAI's chat and text completions over HTTP/1.1 on 127.0.0.1, streaming and not, in the shape of a vLLM server: one
 * SSE event per HTTP chunk per send(), a role event before the first chat token, a usage event when asked for, [DONE]. One
 * thread, one epoll; tokens leave on the ticks of one decode clock, as the sequences of a batch do. It is exact, not
 * realistic: it has no model, no prefill cost and no cache.
 *
 * What it is for is the truth log (--log FILE): for every request when it was read, admitted and ended, and the time just
 * before every token's send(), all on CLOCK_MONOTONIC, so that a client on the same host can be held against it. A record is
 * a sequence of native 64-bit unsigned integers:
 *     magic 0x5452555448303031, request id (X-Request-Id as a decimal, 0 = none), read_ns, admit_ns (0 = never), end_ns,
 *     tokens sent, flags (bit 0 aborted, 1 chat, 2 stream), bytes of the request's body, then one time per token sent.
 * The log is complete once the process has ended (SIGTERM or SIGINT), not before.
 *
 * Prints two JSON lines: {"port": P} when it listens, and its counters at the end.
 *
 * Build: cc -O2 -o mockserver mockserver.c        Use: mockserver --port 0 --ttft-ms 50 --itl-ms 20 --log truth.bin
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef unsigned long long llu; /* for printf */

#define LOG_MAGIC 0x5452555448303031ull
#define SECOND 1000000000ull
#define MAX_TOKENS 100000
#define EVENT_MAX 1400 /* bytes of the longest event with its chunk frame */
#define READ_ROOM 65536
#define DEFAULT_TOKENS 128
#define WORD_LENGTH 4

/* Every token is a space and a word of the same length, so that a prepared event needs only four bytes patched. */
static const char *const WORDS[] = {
    "that", "with", "this", "from", "have", "will", "when", "your", "they", "been", "were", "what", "each",
    "time", "than", "them", "some", "more", "then", "into", "only", "also", "over", "such", "make", "most",
    "like", "used", "must", "same", "very", "just", "many", "well", "much", "even", "here", "both", "long",
    "name", "file", "list", "line", "data", "code", "type", "call", "test", "form", "text", "size", "case",
    "user", "work", "true", "none", "read", "open", "kind", "find", "help", "part", "next", "does"};
static const char *word(int i) { return WORDS[i * 7 % (int)(sizeof WORDS / sizeof *WORDS)]; }

enum state {
    READING, /* no request in hand */
    WAITING, /* read, queued for a slot of the batch */
    RUNNING, /* in the batch */
};

typedef struct connection {
    int fd, closed;
    enum state state;
    int slot;                /* index in `batch`, -1 = not in it */
    struct connection *next; /* in the waiting queue, or among the closed ones to be freed */

    char *in; /* received, not yet handled */
    size_t in_length, in_capacity;
    char *out; /* not yet accepted by the kernel: out[out_start..out_length) */
    size_t out_start, out_length, out_capacity;
    int wants_write; /* EPOLLOUT is asked for */

    /* The request in hand. */
    int chat, stream, usage, tokens, tokens_sent;
    u64 request_id, body_bytes, read_ns, admit_ns, due_ns;
    u64 *token_ns;
    int token_capacity;
    char head[512]; /* start of every event: id, object, created, model */
    int head_length;
    char chunk[1024]; /* a whole token event in its chunk frame */
    int chunk_length, word_offset;
} connection;

static struct {
    u64 ttft_ns, step_ns;
    int max_running, finish_separate;
    const char *model;
} options = {.max_running = 1 << 30, .model = "mock-model"};

static struct {
    u64 requests, done, aborted, prompt_tokens, tokens, connections, steps, late_max_ns;
    int connections_now, connections_max, running_max;
} counters;

static int epoll_fd;
static FILE *truth_log;
static long created_s;
static volatile sig_atomic_t stopping;
static connection **batch; /* the running requests, in no particular order */
static int running, batch_capacity;
static connection *queue_head, *queue_tail;
static int waiting;
static connection *closed; /* freed after the events in hand, which may still name them */

static void handle_input(connection *c);

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * SECOND + (u64)t.tv_nsec;
}

static void *grow(void *memory, size_t bytes) {
    void *grown = realloc(memory, bytes);
    if (!grown) {
        perror("mockserver: memory");
        exit(1);
    }
    return grown;
}

/* ---- the batch and the queue ---- */

static void batch_add(connection *c) {
    if (running == batch_capacity) {
        batch_capacity = batch_capacity ? batch_capacity * 2 : 1024;
        batch = grow(batch, (size_t)batch_capacity * sizeof *batch);
    }
    c->slot = running;
    batch[running++] = c;
    if (running > counters.running_max) counters.running_max = running;
}

static void batch_remove(connection *c) {
    if (c->slot < 0) return;
    connection *last = batch[--running];
    batch[c->slot] = last;
    last->slot = c->slot;
    c->slot = -1;
}

static void queue_add(connection *c) {
    c->next = NULL;
    if (queue_tail) queue_tail->next = c;
    else queue_head = c;
    queue_tail = c;
    waiting++;
}

static void queue_remove(connection *c) {
    connection **link = &queue_head, *before = NULL;
    while (*link && *link != c) {
        before = *link;
        link = &before->next;
    }
    if (!*link) return;
    *link = c->next;
    if (queue_tail == c) queue_tail = before;
    waiting--;
}

static void admit(u64 now) {
    while (queue_head && running < options.max_running) {
        connection *c = queue_head;
        queue_remove(c);
        c->state = RUNNING;
        c->admit_ns = now;
        c->due_ns = now + options.ttft_ns;
        batch_add(c);
    }
}

/* ---- output ---- */

static void log_request(const connection *c, int aborted) {
    if (!truth_log) return;
    u64 flags = (u64)aborted | (u64)c->chat << 1 | (u64)c->stream << 2;
    u64 fields[8] = {LOG_MAGIC, c->request_id, c->read_ns, c->admit_ns, now_ns(), (u64)c->tokens_sent, flags, c->body_bytes};
    fwrite(fields, sizeof *fields, 8, truth_log);
    fwrite(c->token_ns, sizeof *c->token_ns, (size_t)c->tokens_sent, truth_log);
}

static void close_connection(connection *c) {
    if (c->closed) return;
    c->closed = 1;
    counters.connections_now--;
    if (c->state == WAITING) queue_remove(c);
    if (c->state != READING) {
        counters.aborted++;
        log_request(c, 1);
    }
    batch_remove(c);
    close(c->fd); /* leaves the epoll set by itself */
    c->next = closed;
    closed = c;
}

static void watch_writable(connection *c, int wanted) {
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    c->wants_write = wanted;
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

/* One send(); what the kernel does not take is kept and goes out when the socket is writable again. */
static void put(connection *c, const char *bytes, size_t length) {
    if (c->closed) return;
    if (c->out_start == c->out_length) {
        c->out_start = c->out_length = 0;
        ssize_t sent = send(c->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                close_connection(c);
                return;
            }
            sent = 0;
        }
        if ((size_t)sent == length) return;
        bytes += sent;
        length -= (size_t)sent;
    }
    if (c->out_length + length > c->out_capacity) {
        c->out_capacity = (c->out_length + length) * 2;
        c->out = grow(c->out, c->out_capacity);
    }
    memcpy(c->out + c->out_length, bytes, length);
    c->out_length += length;
    if (!c->wants_write) watch_writable(c, 1);
}

static void flush(connection *c) {
    while (c->out_start < c->out_length) {
        ssize_t sent = send(c->fd, c->out + c->out_start, c->out_length - c->out_start, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EINTR) close_connection(c);
            return;
        }
        c->out_start += (size_t)sent;
    }
    c->out_start = c->out_length = 0;
    watch_writable(c, 0);
}

/* Lays an event into its HTTP chunk frame; returns the length of the whole. */
static int frame(char *out, const char *event, int length) {
    int size = sprintf(out, "%x\r\n", (unsigned)length);
    memcpy(out + size, event, (size_t)length);
    memcpy(out + size + length, "\r\n", 2);
    return size + length + 2;
}

__attribute__((format(printf, 2, 3))) static void put_event(connection *c, const char *format, ...) {
    char event[EVENT_MAX - 16], framed[EVENT_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(event, sizeof event, format, arguments);
    va_end(arguments);
    put(c, framed, (size_t)frame(framed, event, length));
}

static void put_response(connection *c, const char *status, const char *type, const char *body, size_t length) {
    char head[256];
    int size = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nserver: mock\r\ncontent-length: %zu\r\ncontent-type: %s\r\n\r\n",
                        status, length, type);
    char *whole = grow(NULL, (size_t)size + length);
    memcpy(whole, head, (size_t)size);
    memcpy(whole + size, body, length);
    put(c, whole, (size_t)size + length);
    free(whole);
}

/* ---- one request's answer ---- */

static unsigned prompt_tokens(const connection *c) { return (unsigned)(c->body_bytes / 5 + 1); }

/* The part of a token event after its text; reason is a JSON value. */
static void token_event(const connection *c, char *event, size_t room, const char *text, const char *reason, int *length,
                        int *text_offset) {
    int start = snprintf(event, room, "%s{\"index\":0,%s", c->head, c->chat ? "\"delta\":{\"content\":\"" : "\"text\":\"");
    *text_offset = start;
    *length = start + snprintf(event + start, room - (size_t)start,
                               "%s\"%s,\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,\"token_ids\":null}]}\n\n",
                               text, c->chat ? "}" : "", reason);
}

static void put_token_event(connection *c, const char *text, const char *reason) {
    char event[EVENT_MAX - 16], framed[EVENT_MAX];
    int length, offset;
    token_event(c, event, sizeof event, text, reason, &length, &offset);
    put(c, framed, (size_t)frame(framed, event, length));
}

/* Prepares what every token of the request has in common. */
static void prepare(connection *c) {
    char event[sizeof c->chunk - 16];
    int length, offset;
    c->head_length = snprintf(c->head, sizeof c->head,
                              "data: {\"id\":\"%s-%llu\",\"object\":\"%s\",\"created\":%ld,\"model\":\"%s\",\"choices\":[",
                              c->chat ? "chatcmpl" : "cmpl", (llu)(c->request_id ? c->request_id : counters.requests),
                              c->chat ? "chat.completion.chunk" : "text_completion", created_s, options.model);
    token_event(c, event, sizeof event, " wxyz", "null", &length, &offset);
    c->chunk_length = frame(c->chunk, event, length);
    c->word_offset = c->chunk_length - 2 - length + offset + 1; /* 2: the frame's end; 1: the space before the word */
}

static void put_stream_end(connection *c) {
    if (c->usage) {
        unsigned prompt = prompt_tokens(c);
        put_event(c, "%s],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"completion_tokens\":%d}}\n\n", c->head, prompt,
                  prompt + (unsigned)c->tokens, c->tokens);
    }
    put_event(c, "data: [DONE]\n\n");
    put(c, "0\r\n\r\n", 5);
}

static void put_whole_answer(connection *c) {
    size_t room = (size_t)c->tokens * (WORD_LENGTH + 1) + 1, all = room + 1024;
    char *text = grow(NULL, room), *body = grow(NULL, all);
    for (int i = 0; i < c->tokens; i++) sprintf(text + i * (WORD_LENGTH + 1), " %s", word(i));
    unsigned prompt = prompt_tokens(c);
    int length = snprintf(body, all,
                          "{\"id\":\"%s-%llu\",\"object\":\"%s\",\"created\":%ld,\"model\":\"%s\",\"choices\":[{\"index\":0,%s%s\"%s,"
                          "\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}],"
                          "\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"completion_tokens\":%d}}",
                          c->chat ? "chatcmpl" : "cmpl", (llu)(c->request_id ? c->request_id : counters.requests),
                          c->chat ? "chat.completion" : "text_completion", created_s, options.model,
                          c->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"", text,
                          c->chat ? "}" : "", prompt, prompt + (unsigned)c->tokens, c->tokens);
    put_response(c, "200 OK", "application/json", body, (size_t)length);
    free(body);
    free(text);
}

static void put_stream_token(connection *c, int i, int last) {
    if (!last || options.finish_separate) {
        memcpy(c->chunk + c->word_offset, word(i), WORD_LENGTH);
        put(c, c->chunk, (size_t)c->chunk_length);
        if (last) put_token_event(c, "", "\"length\"");
        return;
    }
    char text[WORD_LENGTH + 2] = " ";
    memcpy(text + 1, word(i), WORD_LENGTH);
    put_token_event(c, text, "\"length\"");
}

/* Emits the next token; returns 1 when the request has left the batch. */
static int emit_token(connection *c) {
    int i = c->tokens_sent, last = i + 1 == c->tokens;
    if (c->stream && c->chat && i == 0)
        put_event(c, "%s{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
                  c->head);
    if (c->closed) return 1;
    c->token_ns[i] = now_ns();
    c->tokens_sent++;
    counters.tokens++;
    if (c->stream) put_stream_token(c, i, last);
    if (last && c->stream) put_stream_end(c);
    if (last && !c->stream) put_whole_answer(c);
    if (c->closed) return 1;
    if (!last) return 0;
    counters.done++;
    counters.prompt_tokens += prompt_tokens(c);
    log_request(c, 0);
    batch_remove(c);
    c->state = READING;
    return 1;
}

/* One tick of the decode clock: a token for every running request that is past its prefill. */
static void step(void) {
    u64 now = now_ns();
    for (int i = 0; i < running;) {
        connection *c = batch[i];
        /* Without a clock a slow reader sets the pace: nothing is made while its last bytes still wait. */
        if (c->due_ns > now || (!options.step_ns && c->out_length > c->out_start)) {
            i++;
        } else if (!emit_token(c)) {
            i++;
        } else if (!c->closed && c->in_length) {
            handle_input(c);
        }
        /* A request that ended has given its slot to another one: the same index is looked at again. */
    }
    admit(now_ns());
}

/* ---- input ---- */

/* Value of an integer or boolean key, found by its text alone; quotes inside strings are escaped, so cannot match. */
static long json_value(const char *body, size_t length, const char *key, long otherwise) {
    const char *at = memmem(body, length, key, strlen(key)), *end = body + length;
    if (!at) return otherwise;
    at += strlen(key);
    while (at < end && (*at == ' ' || *at == ':')) at++;
    if (at < end && *at == 't') return 1;
    if (at < end && *at == 'f') return 0;
    return at < end && *at >= '0' && *at <= '9' ? strtol(at, NULL, 10) : otherwise;
}

static void start_completion(connection *c, int chat, const char *body, size_t length, u64 request_id) {
    static const char STREAM_HEAD[] = "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                                      "transfer-encoding: chunked\r\n\r\n";
    counters.requests++;
    c->chat = chat;
    c->stream = json_value(body, length, "\"stream\"", 0) == 1;
    c->usage = json_value(body, length, "\"include_usage\"", 0) == 1;
    long tokens = json_value(body, length, "\"max_completion_tokens\"", json_value(body, length, "\"max_tokens\"", 0));
    if (tokens <= 0) tokens = DEFAULT_TOKENS;
    c->tokens = tokens > MAX_TOKENS ? MAX_TOKENS : (int)tokens;
    c->tokens_sent = 0;
    c->body_bytes = length;
    c->request_id = request_id;
    c->read_ns = now_ns();
    c->admit_ns = 0;
    if (c->token_capacity < c->tokens) {
        c->token_capacity = c->tokens;
        c->token_ns = grow(c->token_ns, (size_t)c->tokens * sizeof *c->token_ns);
    }
    prepare(c);
    c->state = WAITING;
    queue_add(c);
    if (c->stream) put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1);
    admit(c->read_ns);
}

static void put_metrics(connection *c) {
    char body[4096];
    int length = 0;
    const struct { const char *name, *type, *more; double value; } rows[] = {
        {"vllm:num_requests_running", "gauge", "", running},
        {"vllm:num_requests_waiting", "gauge", "", waiting},
        {"vllm:kv_cache_usage_perc", "gauge", "", running < 4096 ? running / 4096.0 : 1.0},
        {"vllm:prompt_tokens_total", "counter", "", (double)counters.prompt_tokens},
        {"vllm:generation_tokens_total", "counter", "", (double)counters.tokens},
        {"vllm:request_success_total", "counter", ",finished_reason=\"length\"", (double)counters.done},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        length += snprintf(body + length, sizeof body - (size_t)length,
                           "# TYPE %s %s\n%s{engine=\"0\",model_name=\"%s\"%s} %.15g\n", rows[i].name, rows[i].type,
                           rows[i].name, options.model, rows[i].more, rows[i].value);
    }
    put_response(c, "200 OK", "text/plain; version=0.0.4; charset=utf-8", body, (size_t)length);
}

static void answer_get(connection *c, const char *path) {
    char body[1024];
    const char *status = "200 OK";
    if (!strncmp(path, "/metrics ", 9)) {
        put_metrics(c);
        return;
    }
    if (!strncmp(path, "/v1/models ", 11))
        snprintf(body, sizeof body, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":%ld,"
                 "\"owned_by\":\"mock\",\"max_model_len\":32768}]}", options.model, created_s);
    else if (!strncmp(path, "/health ", 8)) body[0] = 0;
    else if (!strncmp(path, "/version ", 9)) strcpy(body, "{\"version\":\"mock\"}");
    else {
        status = "404 Not Found";
        strcpy(body, "{\"detail\":\"Not Found\"}");
    }
    put_response(c, status, "application/json", body, strlen(body));
}

/* Takes whole requests off the input, one at a time: the next one waits until the answer to this one is out. */
static void handle_input(connection *c) {
    while (!c->closed && c->state == READING && c->in_length) {
        c->in[c->in_length] = 0;
        char *end = memmem(c->in, c->in_length, "\r\n\r\n", 4);
        if (!end) return;
        size_t head = (size_t)(end - c->in) + 4, body_length = 0;
        u64 request_id = 0;
        for (char *line = c->in, *newline; line < end && (newline = memchr(line, '\n', (size_t)(end + 2 - line))); line = newline + 1) {
            if (!strncasecmp(line, "content-length:", 15)) body_length = strtoul(line + 15, NULL, 10);
            else if (!strncasecmp(line, "x-request-id:", 13)) request_id = strtoull(line + 13, NULL, 10);
        }
        if (c->in_length < head + body_length) return;
        if (!strncmp(c->in, "POST /v1/chat/completions ", 26)) start_completion(c, 1, c->in + head, body_length, request_id);
        else if (!strncmp(c->in, "POST /v1/completions ", 21)) start_completion(c, 0, c->in + head, body_length, request_id);
        else if (!strncmp(c->in, "GET ", 4)) answer_get(c, c->in + 4);
        else answer_get(c, "");
        if (c->closed) return;
        c->in_length -= head + body_length;
        memmove(c->in, c->in + head + body_length, c->in_length);
    }
}

static void read_input(connection *c) {
    if (c->in_length + READ_ROOM > c->in_capacity) {
        c->in_capacity = c->in_length + 2 * READ_ROOM;
        c->in = grow(c->in, c->in_capacity + 1); /* 1: handle_input ends the text with a zero */
    }
    ssize_t got = recv(c->fd, c->in + c->in_length, c->in_capacity - c->in_length, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        close_connection(c);
    } else if (got > 0) {
        c->in_length += (size_t)got;
        handle_input(c);
    }
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connection *c = grow(NULL, sizeof *c);
        *c = (connection){.fd = fd, .slot = -1};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
        counters.connections++;
        if (++counters.connections_now > counters.connections_max) counters.connections_max = counters.connections_now;
    }
}

/* ---- the loop ---- */

/* The decode clock: ticks lie on one grid from the start of the process, and it runs only while there is work. */
static struct { int fd, armed; u64 base_ns, next_ns; } ticker = {.fd = -1};

static struct timespec as_timespec(u64 ns) { return (struct timespec){(time_t)(ns / SECOND), (long)(ns % SECOND)}; }

static void arm_ticker(void) {
    if (!options.step_ns || ticker.armed == (running > 0)) return;
    struct itimerspec when = {0};
    if (running) {
        ticker.next_ns = ticker.base_ns + ((now_ns() - ticker.base_ns) / options.step_ns + 1) * options.step_ns;
        when.it_value = as_timespec(ticker.next_ns);
        when.it_interval = as_timespec(options.step_ns);
    }
    timerfd_settime(ticker.fd, TFD_TIMER_ABSTIME, &when, NULL);
    ticker.armed = running > 0;
}

/* Whether a tick is due; several missed ones are one step, as a slow engine takes one. */
static int ticked(void) {
    u64 ticks;
    if (read(ticker.fd, &ticks, sizeof ticks) != sizeof ticks) return 0;
    u64 due = ticker.next_ns + (ticks - 1) * options.step_ns, now = now_ns();
    ticker.next_ns += ticks * options.step_ns;
    if (now > due && now - due > counters.late_max_ns) counters.late_max_ns = now - due;
    counters.steps++;
    return 1;
}

/* Milliseconds that the loop may sleep without a decode clock: until the first request is past its prefill. */
static int idle_ms(void) {
    if (options.step_ns || !running) return -1;
    u64 now = now_ns(), least = UINT64_MAX;
    for (int i = 0; i < running && least; i++) {
        if (batch[i]->out_length > batch[i]->out_start) continue;
        u64 left = batch[i]->due_ns > now ? batch[i]->due_ns - now : 0;
        if (left < least) least = left;
    }
    return least == UINT64_MAX ? -1 : (int)((least + 999999) / 1000000);
}

static void serve(int listener) {
    static struct epoll_event events[1024];
    while (!stopping) {
        arm_ticker();
        int count = epoll_wait(epoll_fd, events, 1024, idle_ms()), tick = 0;
        for (int i = 0; i < count; i++) {
            void *who = events[i].data.ptr;
            if (!who) {
                accept_all(listener);
            } else if (who == &ticker) {
                tick = ticked();
            } else {
                connection *c = who;
                if (!c->closed && events[i].events & EPOLLOUT) flush(c);
                if (!c->closed && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_input(c);
            }
        }
        if (tick || (!options.step_ns && running)) step();
        else admit(now_ns());
        while (closed) {
            connection *c = closed;
            closed = c->next;
            free(c->in);
            free(c->out);
            free(c->token_ns);
            free(c);
        }
    }
}

static void on_signal(int number) {
    (void)number;
    stopping = 1;
}

static int listen_on(int port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, length) || listen(listener, 4096) || getsockname(listener, (void *)&address, &length)) {
        perror("mockserver: cannot listen");
        exit(1);
    }
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static int usage(void) {
    fprintf(stderr, "usage: mockserver [--port P] [--ttft-ms X] [--itl-ms Y] [--max-running N] [--log FILE] [--model NAME]"
                    " [--finish-separate]\n"
                    "  --port 0 (the default) takes a free one; --itl-ms 0 sends as fast as the clients read\n");
    return 2;
}

int main(int argc, char **argv) {
    int port = 0;
    const char *log_path = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--finish-separate")) {
            options.finish_separate = 1;
            continue;
        }
        if (i + 1 == argc) return usage();
        const char *name = argv[i], *value = argv[++i];
        if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--ttft-ms")) options.ttft_ns = (u64)(atof(value) * 1e6);
        else if (!strcmp(name, "--itl-ms")) options.step_ns = (u64)(atof(value) * 1e6);
        else if (!strcmp(name, "--max-running")) options.max_running = atoi(value);
        else if (!strcmp(name, "--log")) log_path = value;
        else if (!strcmp(name, "--model")) options.model = value;
        else return usage();
    }
    if (strlen(options.model) > 128 || options.max_running < 1) return usage();
    if (log_path && !(truth_log = fopen(log_path, "wb"))) {
        perror(log_path);
        return 1;
    }
    if (truth_log) setvbuf(truth_log, NULL, _IOFBF, 1 << 22);
    created_s = (long)time(NULL);

    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(port);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    if (options.step_ns) {
        ticker.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        ticker.base_ns = now_ns();
        event.data.ptr = &ticker;
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, ticker.fd, &event);
    }
    serve(listener);

    if (truth_log) fclose(truth_log);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("{\"requests\": %llu, \"done\": %llu, \"aborted\": %llu, \"tokens\": %llu, \"connections\": %llu, \"connections_max\": %d, "
           "\"running_max\": %d, \"steps\": %llu, \"step_late_max_ms\": %.3f, \"cpu_s\": %.4f}\n",
           (llu)counters.requests, (llu)counters.done, (llu)counters.aborted, (llu)counters.tokens, (llu)counters.connections,
           counters.connections_max, counters.running_max, (llu)counters.steps, (double)counters.late_max_ns / 1e6, cpu_s);
    return 0;
}
