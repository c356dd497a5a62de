/*
 * climit: the floor that a client can reach, to hold the real one against.
 *
 * N keep-alive connections to 127.0.0.1, each with one streamed chat request at a time, until R requests are done. It does
 * the least that still measures: epoll, one recv() and one clock reading a wake-up, a search for the blank line that ends an
 * event and for the chunk that ends the answer. It keeps no text and parses no JSON, so no client does the same work for less.
 *
 * --log FILE writes, for every request, native 64-bit unsigned integers: magic 0x434c4e5430303031, request id, sent_ns, the
 * number of tokens, then one arrival time per token, on CLOCK_MONOTONIC. Prints one JSON line with rates and processor time.
 *
 * Build: cc -O2 -o climit climit.c        Use: climit --port P --connections 64 --requests 2000 --tokens 128
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

#define LOG_MAGIC 0x434c4e5430303031ull
#define OTHER_EVENTS 3 /* the role, usage and [DONE] events around the tokens */
#define END "0\r\n\r\n"
#define END_LENGTH 5

typedef struct {
    int fd, events, ends_in_newline;
    u64 request_id, sent_ns;
    u64 *event_ns;
    char tail[END_LENGTH]; /* the last bytes received: the end may come in pieces */
} connection;

static int port = 8000, connections = 64, requests = 2000, tokens = 128;
static FILE *log_file;
static long issued, finished, events_seen, reads, bytes;

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void send_request(connection *c) {
    char body[512], request[1024];
    int length = snprintf(body, sizeof body,
                          "{\"model\":\"mock-model\",\"messages\":[{\"role\":\"user\",\"content\":\"that with this from have will when "
                          "your they been were what each time than them\"}],\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":true,"
                          "\"stream_options\":{\"include_usage\":true}}", tokens);
    c->request_id = (u64)++issued;
    c->events = c->ends_in_newline = 0;
    memset(c->tail, 0, sizeof c->tail);
    int all = snprintf(request, sizeof request,
                       "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                       "X-Request-Id: %llu\r\nContent-Length: %d\r\n\r\n%s", port, (unsigned long long)c->request_id, length, body);
    c->sent_ns = now_ns();
    if (send(c->fd, request, (size_t)all, MSG_NOSIGNAL) != all) die("climit: send");
}

static void event(connection *c, u64 now) {
    if (c->events < tokens + OTHER_EVENTS) c->event_ns[c->events] = now;
    c->events++;
}

/* Counts the blank lines ("\n\n", possibly cut in two by a read) and stamps each with the time of the read. */
static void scan(connection *c, const char *at, const char *end, u64 now) {
    if (c->ends_in_newline && *at == '\n') {
        event(c, now);
        at++;
    }
    c->ends_in_newline = 0;
    while (at < end && (at = memchr(at, '\n', (size_t)(end - at)))) {
        if (at + 1 == end) c->ends_in_newline = 1;
        else if (at[1] == '\n') {
            event(c, now);
            at++;
        }
        at++;
    }
}

static int ended(connection *c, const char *data, size_t length) {
    if (length >= END_LENGTH) {
        memcpy(c->tail, data + length - END_LENGTH, END_LENGTH);
    } else {
        memmove(c->tail, c->tail + length, END_LENGTH - length);
        memcpy(c->tail + END_LENGTH - length, data, length);
    }
    return !memcmp(c->tail, END, END_LENGTH);
}

static void finish(connection *c) {
    finished++;
    events_seen += c->events;
    if (!log_file) return;
    u64 count = (u64)(c->events > OTHER_EVENTS ? c->events - OTHER_EVENTS : 0);
    u64 fields[4] = {LOG_MAGIC, c->request_id, c->sent_ns, count};
    fwrite(fields, sizeof *fields, 4, log_file);
    fwrite(c->event_ns + 1, sizeof *c->event_ns, count, log_file); /* 1: the role event is no token */
}

static connection *open_all(int epoll_fd) {
    connection *all = calloc((size_t)connections, sizeof *all);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    for (int i = 0; i < connections; i++) {
        connection *c = all + i;
        c->event_ns = calloc((size_t)(tokens + OTHER_EVENTS), sizeof *c->event_ns);
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(c->fd, (void *)&address, sizeof address)) die("climit: connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event watch = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &watch);
    }
    return all;
}

static void run(int epoll_fd) {
    static char data[262144];
    static struct epoll_event ready[1024];
    for (int live = connections; live;) {
        int count = epoll_wait(epoll_fd, ready, 1024, -1);
        for (int i = 0; i < count; i++) {
            connection *c = ready[i].data.ptr;
            ssize_t got = recv(c->fd, data, sizeof data, MSG_DONTWAIT);
            if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (got <= 0) die("climit: the server closed a connection");
            reads++;
            bytes += got;
            scan(c, data, data + got, now_ns());
            if (!ended(c, data, (size_t)got)) continue;
            finish(c);
            if (issued < requests) send_request(c);
            else live--;
        }
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--connections")) connections = atoi(value);
        else if (!strcmp(name, "--requests")) requests = atoi(value);
        else if (!strcmp(name, "--tokens")) tokens = atoi(value);
        else if (strcmp(name, "--log") || !(log_file = fopen(value, "wb"))) die(value);
    }
    if (connections > requests) connections = requests;
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connection *all = open_all(epoll_fd);
    u64 start_ns = now_ns();
    double start_cpu_s = cpu_s();
    for (int i = 0; i < connections; i++) send_request(all + i);
    run(epoll_fd);
    double wall_s = (double)(now_ns() - start_ns) / 1e9, used_s = cpu_s() - start_cpu_s;
    if (log_file) fclose(log_file);
    long received = events_seen - OTHER_EVENTS * finished;
    printf("{\"connections\": %d, \"requests\": %ld, \"tokens\": %ld, \"wall_s\": %.3f, \"tokens_per_s\": %.0f, \"cpu_s\": %.4f, "
           "\"cpu_us_per_token\": %.3f, \"reads\": %ld, \"events_per_read\": %.2f, \"bytes\": %ld}\n",
           connections, finished, received, wall_s, (double)received / wall_s, used_s, used_s * 1e6 / (double)received, reads,
           (double)events_seen / (double)reads, bytes);
    return 0;
}
