/*
 * `ferroce storm` as one writes it with librdmacm: connections that IO threads close, in the two ways that keep that from being a use after
 * free. For comparison only; `vm/storm.sh` runs both.
 *
 *   storm_rdmacm server IP POLICY THREADS NIC FACTOR CONNECTIONS
 *   storm_rdmacm client IP POLICY THREADS NIC FACTOR CONNECTIONS WINDOW
 *
 * POLICY  deferred: IO threads ask the event thread to destroy; channel-lock: one mutex is held for every call of librdmacm and while an event is
 *         handled, and IO threads destroy.
 * NIC     none, or slow: the calls that a NIC's firmware executes take as long as public reports say, by sleeping. The times are those of
 *         `ferroce storm --nic slow`, FACTOR times as long.
 *
 * One event thread and THREADS IO threads at each end, each with a completion queue. Each connection carries one checked message each way. The
 * client prints one JSON document. Anything that goes wrong ends the program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 64, MAX_THREADS = 64, BACKLOG = 1024, PORT = 7177 };

static void die(const char *what) {
	fprintf(stderr, "storm_rdmacm: %s: %s\n", what, errno ? strerror(errno) : "no error number");
	exit(1);
}

static uint64_t now_ns(void) {
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ull + at.tv_nsec;
}

/* ---- what a NIC's firmware takes ---- */

static bool slow_nic;
static unsigned nic_factor;
static __thread uint64_t debt_ns;
static __thread unsigned seed;

static unsigned between(unsigned low, unsigned high) {
	if (!seed)
		seed = (unsigned)now_ns() ^ (unsigned)gettid();
	return low + (unsigned)rand_r(&seed) % (high - low);
}

/* Sleeps so long that the mean is right, though sleeping is less precise. */
static void take_us(unsigned low, unsigned high) {
	if (!slow_nic)
		return;
	uint64_t wanted = between(low, high) * 1000ull * nic_factor, begun = now_ns();
	if (wanted > debt_ns) {
		uint64_t rest = wanted - debt_ns;
		struct timespec left = { (time_t)(rest / 1000000000), (long)(rest % 1000000000) };
		nanosleep(&left, NULL);
	}
	uint64_t spent = debt_ns + (now_ns() - begun);
	debt_ns = spent > wanted ? spent - wanted : 0;
	if (debt_ns > 1000000ull * nic_factor)
		debt_ns = 1000000ull * nic_factor;
}

static void take_create(void) {
	if (between(0, 100) == 0)
		take_us(10000, 20000);
	else
		take_us(450, 550);
}

static void take_modify(void) { take_us(100, 200); }
static void take_destroy(void) { take_us(1000, 2000); }

/* ---- connections ---- */

struct connection {
	struct rdma_cm_id *id;
	uint64_t begun;
	/* Of its IO thread. */
	bool open, sent, received, closed;
};

enum work { OPEN, ENDED };

struct item {
	struct item *next;
	struct connection *connection;
	enum work work;
};

struct inbox {
	pthread_mutex_t lock;
	struct item *first, **last;
	int bell;
};

struct lane {
	struct inbox inbox;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
};

static bool is_client, deferred;
static unsigned thread_count, connection_count, window = 64;
static struct connection *connections;
static struct lane lanes[MAX_THREADS];
static struct inbox to_destroy;
static struct rdma_event_channel *events;
static struct sockaddr_in address;
static struct ibv_pd *pd;
static struct ibv_mr *memory_region;
static char *memory;
/* Guards all calls of librdmacm and the handling of events, with the policy channel-lock. */
static pthread_mutex_t channel_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint begun_count, ended_count;
static double setup_sum_us;
static double *setup_us;
static unsigned setup_count;

static void enter(void) {
	if (!deferred)
		pthread_mutex_lock(&channel_lock);
}

static void leave(void) {
	if (!deferred)
		pthread_mutex_unlock(&channel_lock);
}

static void inbox_init(struct inbox *inbox) {
	pthread_mutex_init(&inbox->lock, NULL);
	inbox->first = NULL;
	inbox->last = &inbox->first;
	inbox->bell = eventfd(0, EFD_NONBLOCK);
	if (inbox->bell < 0)
		die("eventfd");
}

static void hand_over(struct inbox *inbox, struct connection *connection, enum work work) {
	struct item *item = malloc(sizeof *item);
	if (!item)
		die("malloc");
	*item = (struct item){ NULL, connection, work };
	pthread_mutex_lock(&inbox->lock);
	*inbox->last = item;
	inbox->last = &item->next;
	pthread_mutex_unlock(&inbox->lock);
	uint64_t one = 1;
	if (write(inbox->bell, &one, sizeof one) < 0)
		die("ringing a bell");
}

static struct item *take_all(struct inbox *inbox) {
	pthread_mutex_lock(&inbox->lock);
	struct item *first = inbox->first;
	inbox->first = NULL;
	inbox->last = &inbox->first;
	pthread_mutex_unlock(&inbox->lock);
	return first;
}

static void hush(int bell) {
	uint64_t count;
	if (read(bell, &count, sizeof count) < 0 && errno != EAGAIN)
		die("reading a bell");
}

static unsigned serial_of(struct connection *connection) { return (unsigned)(connection - connections); }
static struct lane *lane_of(struct connection *connection) { return &lanes[serial_of(connection) % thread_count]; }
static char *outgoing(unsigned serial) { return memory + 2 * MESSAGE * (size_t)serial; }
static char *incoming(unsigned serial) { return outgoing(serial) + MESSAGE; }

static void *io_thread(void *lane);

/* What all connections share, once the first id says which device it is. */
static void equip(struct ibv_context *verbs) {
	if (pd)
		return;
	size_t length = 2 * MESSAGE * (size_t)connection_count;
	memory = calloc(1, length);
	pd = ibv_alloc_pd(verbs);
	if (!memory || !pd)
		die("a protection domain");
	memory_region = ibv_reg_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE);
	if (!memory_region)
		die("a memory region");
	for (unsigned at = 0; at < thread_count; at++) {
		struct lane *lane = &lanes[at];
		lane->channel = ibv_create_comp_channel(verbs);
		if (!lane->channel || fcntl(lane->channel->fd, F_SETFL, O_NONBLOCK))
			die("a completion channel");
		lane->cq = ibv_create_cq(verbs, 8192, NULL, lane->channel, 0);
		if (!lane->cq)
			die("a completion queue");
		pthread_t thread;
		if (pthread_create(&thread, NULL, io_thread, lane))
			die("a thread");
	}
}

static void create_queue_pair(struct connection *connection) {
	struct lane *lane = lane_of(connection);
	struct ibv_qp_init_attr attr = { .send_cq = lane->cq, .recv_cq = lane->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	attr.cap.max_send_wr = attr.cap.max_recv_wr = attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	take_create();
	take_modify();
	if (rdma_create_qp(connection->id, pd, &attr))
		die("rdma_create_qp");
	unsigned serial = serial_of(connection);
	struct ibv_sge sge = { (uintptr_t)incoming(serial), MESSAGE, memory_region->lkey };
	struct ibv_recv_wr receive = { .wr_id = serial, .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(connection->id->qp, &receive, &bad))
		die("ibv_post_recv");
}

static void send_message(struct connection *connection) {
	unsigned serial = serial_of(connection);
	/* The server numbers connections by itself: it sends back what it got. */
	if (is_client)
		memset(outgoing(serial), (char)serial, MESSAGE);
	else
		memcpy(outgoing(serial), incoming(serial), MESSAGE);
	struct ibv_sge sge = { (uintptr_t)outgoing(serial), MESSAGE, memory_region->lkey };
	struct ibv_send_wr send = { .wr_id = serial, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	if (ibv_post_send(connection->id->qp, &send, &bad))
		die("ibv_post_send");
}

static void begin_next(void) {
	unsigned serial = atomic_fetch_add(&begun_count, 1);
	if (serial >= connection_count)
		return;
	struct connection *connection = &connections[serial];
	connection->begun = now_ns();
	if (rdma_create_id(events, &connection->id, connection, RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_resolve_addr(connection->id, NULL, (struct sockaddr *)&address, 10000))
		die("rdma_resolve_addr");
}

/* With the policy channel-lock, the lock is held. */
static void destroy(struct connection *connection) {
	take_modify();
	rdma_disconnect(connection->id);
	take_destroy();
	rdma_destroy_qp(connection->id);
	if (rdma_destroy_id(connection->id))
		die("rdma_destroy_id");
	if (is_client)
		begin_next();
	atomic_fetch_add(&ended_count, 1);
}

/* An IO thread is done with its connection. */
static void close_connection(struct connection *connection) {
	connection->closed = true;
	if (deferred) {
		hand_over(&to_destroy, connection, ENDED);
		return;
	}
	enter();
	destroy(connection);
	leave();
	uint64_t one = 1;
	if (write(to_destroy.bell, &one, sizeof one) < 0)
		die("ringing a bell");
}

/*
 * The client's message can overtake the event that says that the connection is there. Who destroys the id before that event rejects the
 * connection, in the kernel's eyes, which the client has open already.
 */
static void close_if_done(struct connection *connection) {
	if (connection->open && connection->sent && connection->received)
		close_connection(connection);
}

/* ---- threads ---- */

static void completed(const struct ibv_wc *wc) {
	struct connection *connection = &connections[wc->wr_id];
	if (connection->closed)
		return;
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "storm_rdmacm: connection %u: %s\n", serial_of(connection), ibv_wc_status_str(wc->status));
		exit(1);
	}
	if (wc->opcode & IBV_WC_RECV) {
		connection->received = true;
		if (wc->byte_len != MESSAGE ||
		    (is_client && memcmp(incoming(serial_of(connection)), outgoing(serial_of(connection)), MESSAGE)))
			die("a message is damaged");
		if (!is_client)
			send_message(connection);
	} else {
		connection->sent = true;
	}
	close_if_done(connection);
}

static void opened(struct connection *connection) {
	connection->open = true;
	if (is_client)
		send_message(connection);
	else
		close_if_done(connection);
}

static bool poll_completions(struct lane *lane) {
	struct ibv_wc wcs[32];
	bool any = false;
	for (;;) {
		int count = ibv_poll_cq(lane->cq, 32, wcs);
		if (count < 0)
			die("ibv_poll_cq");
		for (int at = 0; at < count; at++)
			completed(&wcs[at]);
		any |= count > 0;
		if (count < 32)
			return any;
	}
}

static void *io_thread(void *argument) {
	struct lane *lane = argument;
	for (;;) {
		hush(lane->inbox.bell);
		struct item *item = take_all(&lane->inbox);
		bool busy = item != NULL;
		while (item) {
			struct item *next = item->next;
			if (item->work == OPEN)
				opened(item->connection);
			/* The answer has arrived there, or the peer would not have ended it. */
			if (item->work == ENDED && !item->connection->closed)
				close_connection(item->connection);
			free(item);
			item = next;
		}
		busy |= poll_completions(lane);
		if (busy)
			continue;
		if (ibv_req_notify_cq(lane->cq, 0))
			die("ibv_req_notify_cq");
		if (poll_completions(lane))
			continue;
		struct pollfd fds[] = { { lane->inbox.bell, POLLIN, 0 }, { lane->channel->fd, POLLIN, 0 } };
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			die("poll");
		struct ibv_cq *cq;
		void *context;
		while (ibv_get_cq_event(lane->channel, &cq, &context) == 0)
			ibv_ack_cq_events(cq, 1);
	}
	return NULL;
}

static void established(struct connection *connection) {
	if (is_client) {
		double took = (now_ns() - connection->begun) / 1e3;
		setup_us[setup_count++] = took;
		setup_sum_us += took;
	}
	hand_over(&lane_of(connection)->inbox, connection, OPEN);
}

static void on_event(struct rdma_cm_event *event) {
	struct rdma_cm_id *id = event->id;
	struct connection *connection = id->context;
	/* More than enough for a device of any kind. */
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(id, 10000))
			die("rdma_resolve_route");
		return;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		equip(id->verbs);
		create_queue_pair(connection);
		if (rdma_connect(id, &param))
			die("rdma_connect");
		return;
	case RDMA_CM_EVENT_CONNECT_REQUEST: {
		unsigned serial = atomic_fetch_add(&begun_count, 1);
		if (serial >= connection_count)
			die("too many connections");
		connection = &connections[serial];
		connection->id = id;
		id->context = connection;
		equip(id->verbs);
		create_queue_pair(connection);
		take_modify();
		take_modify();
		if (rdma_accept(id, &param))
			die("rdma_accept");
		return;
	}
	case RDMA_CM_EVENT_ESTABLISHED:
		if (is_client) {
			/* librdmacm has moved the queue pair while it read the event. */
			take_modify();
			take_modify();
		}
		established(connection);
		return;
	case RDMA_CM_EVENT_DISCONNECTED:
		hand_over(&lane_of(connection)->inbox, connection, ENDED);
		return;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return;
	default:
		fprintf(stderr, "storm_rdmacm: %s, status %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
}

static void event_loop(void) {
	if (fcntl(events->fd, F_SETFL, O_NONBLOCK))
		die("fcntl");
	while (atomic_load(&ended_count) < connection_count) {
		bool busy = false;
		struct rdma_cm_event *event;
		enter();
		if (rdma_get_cm_event(events, &event) == 0) {
			on_event(event);
			rdma_ack_cm_event(event);
			busy = true;
		} else if (errno != EAGAIN) {
			die("rdma_get_cm_event");
		}
		leave();
		hush(to_destroy.bell);
		for (struct item *item = take_all(&to_destroy), *next; item; item = next) {
			next = item->next;
			destroy(item->connection);
			free(item);
			busy = true;
		}
		if (busy)
			continue;
		struct pollfd fds[] = { { events->fd, POLLIN, 0 }, { to_destroy.bell, POLLIN, 0 } };
		if (atomic_load(&ended_count) < connection_count && poll(fds, 2, -1) < 0 && errno != EINTR)
			die("poll");
	}
}

static int by_size(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv) {
	if (argc < 8 || (strcmp(argv[1], "server") && (strcmp(argv[1], "client") || argc < 9))) {
		fprintf(stderr,
			"usage: storm_rdmacm server|client IP deferred|channel-lock THREADS none|slow FACTOR CONNECTIONS [WINDOW]\n");
		return 2;
	}
	is_client = !strcmp(argv[1], "client");
	deferred = !strcmp(argv[3], "deferred");
	thread_count = (unsigned)atoi(argv[4]);
	slow_nic = !strcmp(argv[5], "slow");
	nic_factor = (unsigned)atoi(argv[6]);
	connection_count = (unsigned)atoi(argv[7]);
	if (is_client)
		window = (unsigned)atoi(argv[8]);
	address.sin_family = AF_INET;
	address.sin_port = htons(PORT);
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1 || thread_count < 1 || thread_count > MAX_THREADS ||
	    nic_factor < 1)
		die("bad arguments");
	connections = calloc(connection_count, sizeof *connections);
	setup_us = calloc(connection_count, sizeof *setup_us);
	events = rdma_create_event_channel();
	if (!connections || !setup_us || !events)
		die("an event channel");
	inbox_init(&to_destroy);
	for (unsigned at = 0; at < thread_count; at++)
		inbox_init(&lanes[at].inbox);
	uint64_t begun = now_ns();
	if (is_client) {
		enter();
		for (unsigned at = 0; at < window && at < connection_count; at++)
			begin_next();
		leave();
	} else {
		struct rdma_cm_id *listener;
		if (rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (struct sockaddr *)&address) ||
		    rdma_listen(listener, BACKLOG))
			die("listening");
	}
	event_loop();
	if (!is_client)
		return 0;
	double seconds = (now_ns() - begun) / 1e9;
	qsort(setup_us, setup_count, sizeof *setup_us, by_size);
	printf("{\"policy\": \"%s\", \"io_threads\": %u, \"nic\": \"%s\", \"connections\": %u, \"rate_per_s\": %.1f, \"setup_us\": "
	       "{\"mean\": %.1f, \"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}}\n",
	       argv[3], thread_count, argv[5], connection_count, connection_count / seconds, setup_sum_us / setup_count,
	       setup_us[setup_count / 2], setup_us[(size_t)setup_count * 99 / 100], setup_us[setup_count - 1]);
	return 0;
}
