/*
 * Receives a finite synthetic wire through RSS, as a capture program would, and verifies all
 * results.
 *
 *   rss poll|ex|event QUEUES COUNT
 *
 * Seven RSS QPs over one indirection table (the catch-all has its own table) receive all traffic.
 * The program checks the queue of each frame against the hash computed bit by bit from the frame's
 * bytes, and the order within the queue. At the end it checks that each of the numbers 0 to COUNT-1
 * arrived exactly once, and no other frame.
 *
 *   poll   ibv_poll_cq
 *   ex     the extended iterator, with timestamps that must not decrease
 *   event  ibv_poll_cq after completion events only: a lost event causes a hang
 *
 * It prints "receiving" to standard error with the first frame.
 */
#define _GNU_SOURCE
#include "check.h"
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

enum { MAX_QUEUES = 64, RING = 512, BUFFER = 2048, BATCH = 32, TABLE_LOG = 7, TABLE = 1 << TABLE_LOG };

enum mode { POLL, EX, EVENT };

struct queue {
	struct ibv_wq *wq;
	uint8_t *memory;
	uint64_t received;
	uint64_t next; /* lowest sequence number that may still arrive */
};

struct completion {
	uint64_t wr_id;
	uint32_t len;
	uint64_t ticks;
};

static enum mode mode;
static int queues;
static uint64_t count;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cq_ex;
static struct queue queue[MAX_QUEUES];
static uint8_t *memory;

static uint64_t wr_id(int q, int slot)
{
	return (uint64_t)q << 32 | (uint32_t)slot;
}

static void post(int q, const int *slots, int n)
{
	struct ibv_sge sge[RING];
	struct ibv_recv_wr wr[RING], *bad = NULL;

	for (int i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){
			.addr = (uintptr_t)(queue[q].memory + (size_t)slots[i] * BUFFER),
			.length = BUFFER,
			.lkey = mr->lkey,
		};
		wr[i] = (struct ibv_recv_wr){
			.wr_id = wr_id(q, slots[i]),
			.sg_list = &sge[i],
			.num_sge = 1,
			.next = i + 1 < n ? &wr[i + 1] : NULL,
		};
	}
	if (n)
		CHECK(!ibv_post_wq_recv(queue[q].wq, wr, &bad));
}

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	size_t size = (size_t)queues * RING * BUFFER;
	memory = aligned_alloc(4096, size);
	CHECK(memory);
	memset(memory, 0xee, size);
	mr = ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
}

static void create_cq(void)
{
	int cqe = queues * RING;

	if (mode != EX) {
		cq = ibv_create_cq(context, cqe, NULL, channel, 0);
	} else {
		struct ibv_cq_init_attr_ex attr = {
			.cqe = (uint32_t)cqe,
			.channel = channel,
			.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
			.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
			.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
		};
		cq_ex = ibv_create_cq_ex(context, &attr);
		CHECK(cq_ex);
		cq = ibv_cq_ex_to_cq(cq_ex);
	}
	CHECK(cq);
}

static void create_queues(void)
{
	for (int q = 0; q < queues; q++) {
		struct ibv_wq_init_attr attr = {
			.wq_type = IBV_WQT_RQ, .max_wr = RING, .max_sge = 1, .pd = pd, .cq = cq,
		};
		struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
		int slots[RING];

		queue[q].wq = ibv_create_wq(context, &attr);
		CHECK(queue[q].wq);
		CHECK(!ibv_modify_wq(queue[q].wq, &ready));
		queue[q].memory = memory + (size_t)q * RING * BUFFER;
		for (int i = 0; i < RING; i++)
			slots[i] = i;
		post(q, slots, RING);
	}
}

static struct ibv_rwq_ind_table *create_table(int log)
{
	struct ibv_wq *entries[TABLE];
	struct ibv_rwq_ind_table_init_attr attr = { .log_ind_tbl_size = (uint32_t)log, .ind_tbl = entries };
	struct ibv_rwq_ind_table *table;

	for (int i = 0; i < 1 << log; i++)
		entries[i] = queue[i % queues].wq;
	table = ibv_create_rwq_ind_table(context, &attr);
	CHECK(table);
	return table;
}

#define IPV4_FIELDS (IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4)
#define IPV6_FIELDS (IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6)
#define TCP_FIELDS (IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP)
#define UDP_FIELDS (IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP)

static const struct profile {
	uint64_t fields;
	enum ibv_flow_spec_type l3, l4; /* 0: no such spec in the rule */
	uint16_t priority;
} profiles[] = {
	{ IPV4_FIELDS | TCP_FIELDS, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_TCP, 0 },
	{ IPV4_FIELDS | UDP_FIELDS, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_UDP, 0 },
	{ IPV6_FIELDS | TCP_FIELDS, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_TCP, 0 },
	{ IPV6_FIELDS | UDP_FIELDS, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_UDP, 0 },
	{ IPV4_FIELDS, IBV_FLOW_SPEC_IPV4, 0, 1 },
	{ IPV6_FIELDS, IBV_FLOW_SPEC_IPV6, 0, 1 },
	{ 0, 0, 0, 2 },
};
enum { PROFILES = sizeof(profiles) / sizeof(profiles[0]) };

static struct ibv_qp *create_qp(const struct profile *profile, struct ibv_rwq_ind_table *table)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = pd,
		.rwq_ind_tbl = table,
		.rx_hash_conf = {
			.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
			.rx_hash_key_len = KEY_LEN,
			.rx_hash_key = (uint8_t *)rss_key,
			.rx_hash_fields_mask = profile->fields,
		},
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	CHECK(qp);
	return qp;
}

/* Creates a rule that matches header types only: every mask is zero. */
static struct ibv_flow *create_flow(const struct profile *profile, struct ibv_qp *qp)
{
	_Alignas(8) uint8_t rule[sizeof(struct ibv_flow_attr) + 256] = { 0 };
	struct ibv_flow_attr *attr = (void *)rule;
	uint8_t *end = (uint8_t *)(attr + 1);
	struct ibv_flow *flow;

	*attr = (struct ibv_flow_attr){ .type = IBV_FLOW_ATTR_NORMAL, .priority = profile->priority, .port = 1 };
#define SPEC(kind, name)                                                   \
	do {                                                               \
		struct name spec = { .type = (kind), .size = sizeof spec }; \
		memcpy(end, &spec, sizeof spec);                           \
		end += sizeof spec;                                        \
		attr->num_of_specs++;                                      \
	} while (0)
	SPEC(IBV_FLOW_SPEC_ETH, ibv_flow_spec_eth);
	if (profile->l3 == IBV_FLOW_SPEC_IPV4)
		SPEC(profile->l3, ibv_flow_spec_ipv4);
	if (profile->l3 == IBV_FLOW_SPEC_IPV6)
		SPEC(profile->l3, ibv_flow_spec_ipv6);
	if (profile->l4)
		SPEC(profile->l4, ibv_flow_spec_tcp_udp);
	attr->size = (uint16_t)(end - rule);
	flow = ibv_create_flow(qp, attr);
	CHECK(flow);
	return flow;
}

/* Returns the queue of a synthetic frame: TCP or UDP over IPv4 or IPv6, with at most one tag. */
static int expected_queue(const uint8_t *frame)
{
	const uint8_t *type = frame + 12;
	uint8_t input[36];
	unsigned len;

	if (type[0] == 0x81 && type[1] == 0x00)
		type += 4;
	if (type[0] == 0x08 && type[1] == 0x00) {
		len = 8;
		memcpy(input, type + 2 + 12, len);
		memcpy(input + len, type + 2 + 20, 4);
	} else {
		CHECK_SAYING(type[0] == 0x86 && type[1] == 0xdd, "type %02x%02x", type[0], type[1]);
		len = 32;
		memcpy(input, type + 2 + 8, len);
		memcpy(input + len, type + 2 + 40, 4);
	}
	return (int)(toeplitz(input, len + 4) % TABLE) % queues;
}

static int poll_plain(struct completion *done)
{
	struct ibv_wc wc[BATCH];
	int n = ibv_poll_cq(cq, BATCH, wc);

	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		CHECK_SAYING(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
		CHECK(wc[i].opcode == IBV_WC_RECV);
		done[i] = (struct completion){ .wr_id = wc[i].wr_id, .len = wc[i].byte_len };
	}
	return n;
}

static int poll_ex(struct completion *done)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int n = 0, result = ibv_start_poll(cq_ex, &attr);

	if (result == ENOENT)
		return 0;
	while (!result) {
		CHECK_SAYING(cq_ex->status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(cq_ex->status));
		CHECK(ibv_wc_read_opcode(cq_ex) == IBV_WC_RECV);
		done[n++] = (struct completion){
			.wr_id = cq_ex->wr_id,
			.len = ibv_wc_read_byte_len(cq_ex),
			.ticks = ibv_wc_read_completion_ts(cq_ex),
		};
		if (n == BATCH)
			break;
		result = ibv_next_poll(cq_ex);
	}
	CHECK(!result || result == ENOENT);
	ibv_end_poll(cq_ex);
	return n;
}

/* Waits for an event of the CQ and arms the CQ before it is polled, so that no event is lost in
 * between. */
static void await_event(void)
{
	struct ibv_cq *which;
	void *cookie;
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };

	CHECK_SAYING(poll(&ready, 1, HANG * 1000) == 1, "no completion event");
	CHECK(!ibv_get_cq_event(channel, &which, &cookie));
	CHECK(which == cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(!ibv_req_notify_cq(cq, 0));
}

static uint64_t take(const struct completion *done, int n, uint8_t *seen)
{
	static uint64_t last_ticks;
	int slots[MAX_QUEUES][BATCH], free_slots[MAX_QUEUES] = { 0 };

	for (int i = 0; i < n; i++) {
		int q = (int)(done[i].wr_id >> 32), slot = (int)(uint32_t)done[i].wr_id;
		CHECK_SAYING(q < queues && slot < RING, "wr_id %#lx was never posted", (unsigned long)done[i].wr_id);
		const uint8_t *frame = queue[q].memory + (size_t)slot * BUFFER;
		CHECK_SAYING(done[i].len >= 60 && done[i].len <= BUFFER, "%u bytes", done[i].len);
		uint64_t number = sequence(frame, done[i].len);

		CHECK_SAYING(number < count, "frame %lu of %lu", (unsigned long)number, (unsigned long)count);
		CHECK_SAYING(!(seen[number / 8] >> number % 8 & 1), "frame %lu twice", (unsigned long)number);
		seen[number / 8] |= (uint8_t)(1 << number % 8);
		CHECK_SAYING(number >= queue[q].next, "queue %d: %lu after %lu", q, (unsigned long)number,
			     (unsigned long)queue[q].next - 1);
		queue[q].next = number + 1;
		CHECK_SAYING(expected_queue(frame) == q, "frame %lu on queue %d, not %d", (unsigned long)number, q,
			     expected_queue(frame));
		CHECK(done[i].ticks >= last_ticks);
		last_ticks = done[i].ticks;
		queue[q].received++;
		slots[q][free_slots[q]++] = slot;
	}
	for (int q = 0; q < queues; q++)
		post(q, slots[q], free_slots[q]);
	return (uint64_t)n;
}

/* Waits until the port goes down, which follows the last frame of a finite wire. */
static void await_port_down(void)
{
	struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK_SAYING(poll(&ready, 1, HANG * 1000) == 1, "no asynchronous event");
	CHECK(!ibv_get_async_event(context, &event));
	CHECK_SAYING(event.event_type == IBV_EVENT_PORT_ERR, "%s", ibv_event_type_str(event.event_type));
	CHECK(event.element.port_num == 1);
	ibv_ack_async_event(&event);
}

int main(int argc, char **argv)
{
	CHECK_SAYING(argc == 4, "usage: rss poll|ex|event QUEUES COUNT");
	mode = !strcmp(argv[1], "ex") ? EX : !strcmp(argv[1], "event") ? EVENT : POLL;
	queues = atoi(argv[2]);
	count = strtoull(argv[3], NULL, 0);
	CHECK(queues >= 1 && queues <= MAX_QUEUES && count > 0);

	open_device();
	create_cq();
	create_queues();
	if (mode == EVENT)
		CHECK(!ibv_req_notify_cq(cq, 0));

	struct ibv_rwq_ind_table *shared = create_table(TABLE_LOG), *single = create_table(0);
	struct ibv_qp *qps[PROFILES];
	struct ibv_flow *flows[PROFILES];
	for (int i = 0; i < PROFILES; i++)
		qps[i] = create_qp(&profiles[i], profiles[i].fields ? shared : single);
	/* The catch-all is created last, so that it gets no frames while the other rules are missing. */
	for (int i = 0; i < PROFILES; i++)
		flows[i] = create_flow(&profiles[i], qps[i]);

	uint8_t *seen = calloc(1, count / 8 + 1);
	CHECK(seen);
	uint64_t received = 0;
	double start = seconds(), last = start;
	struct completion done[BATCH];
	while (received < count) {
		if (mode == EVENT)
			await_event();
		for (int n = 1; n > 0;) {
			n = mode == EX ? poll_ex(done) : poll_plain(done);
			if (n && !received)
				fputs("receiving\n", stderr);
			received += take(done, n, seen);
			if (n)
				last = seconds();
		}
		if (mode != EVENT)
			sched_yield();
		CHECK_SAYING(seconds() - last < HANG, "no frame after %lu frames", (unsigned long)received);
	}
	double took = seconds() - start;
	await_port_down();
	CHECK((mode == EX ? poll_ex(done) : poll_plain(done)) == 0);

	for (int i = 0; i < PROFILES; i++) {
		CHECK(!ibv_destroy_flow(flows[i]));
		CHECK(!ibv_destroy_qp(qps[i]));
	}
	CHECK(!ibv_destroy_rwq_ind_table(shared));
	CHECK(!ibv_destroy_rwq_ind_table(single));
	printf("%lu frames in %.2f s, by queue:", (unsigned long)received, took);
	for (int q = 0; q < queues; q++) {
		struct ibv_wq_attr reset = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RESET };
		CHECK(!ibv_modify_wq(queue[q].wq, &reset));
		CHECK(!ibv_destroy_wq(queue[q].wq));
		printf(" %lu", (unsigned long)queue[q].received);
	}
	printf("\n");
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	free(memory);
	free(seen);
	return 0;
}
