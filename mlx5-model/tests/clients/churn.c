/*
 * Creates, destroys and resets receive queues while frames arrive.
 *
 *   churn waits|loses COUNT SEED
 *
 * The synthetic wire sends COUNT frames: IPv4 and IPv6, TCP and UDP. Each of the four kinds has a
 * group of queues with random number, length and scatter lists, on CQs that are shared at random.
 * At random moments a group is destroyed or created, a CQ is resized, or a queue is moved to ERR or
 * directly to RESET and made ready again. Frames of a kind without a group arrive at the anchor, a
 * permanent queue.
 *
 *   waits   the wire waits for buffers: every frame arrives exactly once
 *   loses   the wire does not wait: the number of missing frames equals out_of_buffer. Queues are
 *           not reset, because a NIC does not count frames dropped at a queue that is not ready.
 *
 * Checked throughout:
 * - Every posted WR completes exactly once, in the order of posting, filled or flushed, until a
 *   reset drops the others. After a reset, no WR from before the reset completes.
 * - Sequence numbers rise within a queue, and no frame arrives twice.
 * - Nothing is written outside the posted buffers: buffers end at a page without access, and the
 *   buffers of a reset or destroyed queue lose all access while their memory region is still
 *   registered.
 * - At the end, received frames and the losses in the port's counters add up to COUNT, and the
 *   flush counter equals the number of flushed WRs.
 */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	GROUPS = 4,
	MAX_QUEUES = 8,   /* per group */
	MAX_RING = 1024,
	ANCHOR_RING = 8192,
	MAX_FRAME = 2048, /* bytes that one WR can receive */
	TABLE_LOG = 5,
	BATCH = 64,
	QUARANTINE = 64,  /* number of retired regions that stay mapped, without access */
};

struct region {
	uint8_t *map; /* mapping, with a page without access at each end */
	size_t map_len;
	uint8_t *memory; /* usable memory; its last byte is the last before the upper guard page */
	size_t len;      /* bytes between the guard pages */
	struct ibv_mr *mr;
};

struct queue {
	bool live;
	struct ibv_wq *wq;
	struct ibv_cq *cq;
	struct region region;
	uint32_t ring, sges;
	uint32_t generation; /* distinguishes current WRs from those before a reset */
	uint64_t posted, completed;
	uint64_t next_sequence;
};

struct group {
	bool live;
	int queues;
	struct queue queue[MAX_QUEUES];
	struct ibv_cq *cq[MAX_QUEUES];
	int cqs;
	struct ibv_rwq_ind_table *table;
	struct ibv_qp *qp;
	struct ibv_flow *flow;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct group group[GROUPS];
static struct group anchor;
static struct region quarantine[QUARANTINE];
static unsigned quarantined;
static uint8_t *seen;
static uint64_t count, received, flushed, made, destroyed, resets, resizes;
static uint64_t state;
static bool waits;

static uint32_t draw(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 32) % below);
}

static size_t page_up(size_t n)
{
	return (n + 4095) & ~(size_t)4095;
}

static struct region make_region(size_t len)
{
	struct region r = { .len = page_up(len) };

	r.map_len = r.len + 2 * 4096;
	r.map = mmap(NULL, r.map_len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(r.map != MAP_FAILED);
	CHECK(!mprotect(r.map + 4096, r.len, PROT_READ | PROT_WRITE));
	r.memory = r.map + 4096 + (r.len - len);
	r.mr = ibv_reg_mr(pd, r.memory, len, IBV_ACCESS_LOCAL_WRITE);
	CHECK(r.mr);
	return r;
}

static void forbid(const struct region *r)
{
	CHECK(!mprotect(r->map + 4096, r->len, PROT_NONE));
}

static void allow(const struct region *r)
{
	CHECK(!mprotect(r->map + 4096, r->len, PROT_READ | PROT_WRITE));
}

/* Removes all access to a region that stays registered for a while: a late write passes the key
* check and then faults. */
static void retire(struct region r)
{
	struct region *place = &quarantine[quarantined++ % QUARANTINE];

	forbid(&r);
	if (place->map) {
		CHECK(!ibv_dereg_mr(place->mr));
		CHECK(!munmap(place->map, place->map_len));
	}
	*place = r;
}

static void set_state(struct queue *q, enum ibv_wq_state to)
{
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = to };

	CHECK_SAYING(!ibv_modify_wq(q->wq, &attr), "to state %d", to);
}

/* Returns the wr_id of a WR: the generation of the queue and the number within the generation. */
static uint64_t id_of(const struct queue *q, uint64_t number)
{
	return (uint64_t)q->generation << 32 | (uint32_t)number;
}

static uint8_t *buffer_of(const struct queue *q, uint64_t number)
{
	return q->region.memory + number % q->ring * MAX_FRAME;
}

/* Fills the ring with WRs, in lists of random length. */
static void post(struct queue *q)
{
	struct ibv_recv_wr wr[BATCH], *bad;
	struct ibv_sge sge[BATCH][3];

	while (q->posted - q->completed < q->ring) {
		uint64_t room = q->ring - (q->posted - q->completed);
		uint32_t n = 1 + draw(BATCH);

		if (n > room)
			n = (uint32_t)room;
		for (uint32_t i = 0; i < n; i++) {
			/* A frame is scattered over up to three parts of increasing size. */
			uint32_t at = 0;
			for (uint32_t s = 0; s < q->sges; s++) {
				uint32_t len = s + 1 == q->sges ? MAX_FRAME - at : 48 * (s + 1);
				sge[i][s] = (struct ibv_sge){
					.addr = (uintptr_t)(buffer_of(q, q->posted + i) + at),
					.length = len,
					.lkey = q->region.mr->lkey,
				};
				at += len;
			}
			wr[i] = (struct ibv_recv_wr){
				.wr_id = id_of(q, q->posted + i),
				.sg_list = sge[i],
				.num_sge = (int)q->sges,
				.next = i + 1 < n ? &wr[i + 1] : NULL,
			};
		}
		CHECK(!ibv_post_wq_recv(q->wq, wr, &bad));
		q->posted += n;
	}
}

/* Returns a new generation, unique among all queues, so that the wr_id identifies the queue. */
static uint32_t next_generation(void)
{
	static uint32_t generation;

	return ++generation;
}

static void take(struct queue *q, const struct ibv_wc *wc, bool flushing)
{
	CHECK_SAYING(wc->wr_id == id_of(q, q->completed), "WR %#lx completed, not %#lx", (unsigned long)wc->wr_id,
		     (unsigned long)id_of(q, q->completed));
	CHECK(q->completed < q->posted);
	if (wc->status == IBV_WC_WR_FLUSH_ERR) {
		CHECK_SAYING(flushing, "flushed WR of a queue that is not in error");
		flushed++;
	} else {
		CHECK_SAYING(wc->status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc->status));
		CHECK(wc->byte_len >= 60 && wc->byte_len <= MAX_FRAME);
		uint64_t number = sequence(buffer_of(q, q->completed), wc->byte_len);
		CHECK_SAYING(number < count, "frame %lu of %lu", (unsigned long)number, (unsigned long)count);
		CHECK_SAYING(number >= q->next_sequence, "frame %lu after %lu", (unsigned long)number,
			     (unsigned long)q->next_sequence - 1);
		CHECK_SAYING(!(seen[number / 8] >> number % 8 & 1), "frame %lu twice", (unsigned long)number);
		seen[number / 8] |= (uint8_t)(1 << number % 8);
		q->next_sequence = number + 1;
		received++;
	}
	q->completed++;
}

static struct queue *queue_of(struct group *g, uint64_t wr_id)
{
	for (int i = 0; i < g->queues; i++)
		if (g->queue[i].generation == wr_id >> 32)
			return &g->queue[i];
	CHECK_SAYING(false, "WR %#lx does not belong to this CQ", (unsigned long)wr_id);
	return NULL;
}

/* Polls one CQ once. `flushing` is the queue whose WRs may be flushed, or NULL. */
static int poll_one(struct group *g, struct ibv_cq *cq, const struct queue *flushing)
{
	struct ibv_wc wc[BATCH];
	int n = ibv_poll_cq(cq, 1 + (int)draw(BATCH), wc);

	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		struct queue *q = queue_of(g, wc[i].wr_id);
		take(q, &wc[i], q == flushing);
	}
	return n;
}

static int poll_group(struct group *g)
{
	int n = 0;

	if (!g->live)
		return 0;
	for (int i = 0; i < g->cqs; i++)
		n += poll_one(g, g->cq[i], NULL);
	for (int i = 0; i < g->queues; i++)
		post(&g->queue[i]);
	return n;
}

static void make_queue(struct queue *q, struct ibv_cq *cq, uint32_t ring, uint32_t sges)
{
	struct ibv_wq_init_attr attr = {
		.wq_type = IBV_WQT_RQ, .max_wr = ring, .max_sge = sges, .pd = pd, .cq = cq,
	};

	*q = (struct queue){ .live = true, .cq = cq, .ring = ring, .sges = sges, .generation = next_generation() };
	q->region = make_region((size_t)ring * MAX_FRAME);
	q->wq = ibv_create_wq(context, &attr);
	CHECK(q->wq);
	set_state(q, IBV_WQS_RDY);
	post(q);
}

static const struct profile {
	uint64_t fields;
	enum ibv_flow_spec_type l3, l4;
} profiles[GROUPS] = {
	{ IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP,
	  IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_TCP },
	{ IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP,
	  IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_UDP },
	{ IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP,
	  IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_TCP },
	{ IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP,
	  IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_UDP },
};

/* Creates the table, the QP and the rule of a group; `profile` NULL is the catch-all. */
static void create_rule(struct group *g, const struct profile *profile)
{
	int log = profile ? TABLE_LOG : 0;
	struct ibv_wq *entries[1 << TABLE_LOG];
	struct ibv_rwq_ind_table_init_attr table_attr = { .log_ind_tbl_size = (uint32_t)log, .ind_tbl = entries };
	uint8_t rule_bytes[sizeof(struct ibv_flow_attr) + 256] __attribute__((aligned(8))) = { 0 };
	struct ibv_flow_attr *rule = (void *)rule_bytes;
	uint8_t *end = (uint8_t *)(rule + 1);

	for (int i = 0; i < 1 << log; i++)
		entries[i] = g->queue[i % g->queues].wq;
	g->table = ibv_create_rwq_ind_table(context, &table_attr);
	CHECK(g->table);
	struct ibv_qp_init_attr_ex qp_attr = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = pd,
		.rwq_ind_tbl = g->table,
		.rx_hash_conf = {
			.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
			.rx_hash_key_len = KEY_LEN,
			.rx_hash_key = (uint8_t *)rss_key,
			.rx_hash_fields_mask = profile ? profile->fields : 0,
		},
	};
	g->qp = ibv_create_qp_ex(context, &qp_attr);
	CHECK(g->qp);

	*rule = (struct ibv_flow_attr){ .type = IBV_FLOW_ATTR_NORMAL, .priority = profile ? 0 : 1, .port = 1 };
#define SPEC(kind, name)                                                   \
	do {                                                               \
		struct name spec = { .type = (kind), .size = sizeof spec }; \
		memcpy(end, &spec, sizeof spec);                           \
		end += sizeof spec;                                        \
		rule->num_of_specs++;                                      \
	} while (0)
	SPEC(IBV_FLOW_SPEC_ETH, ibv_flow_spec_eth);
	if (profile && profile->l3 == IBV_FLOW_SPEC_IPV4)
		SPEC(profile->l3, ibv_flow_spec_ipv4);
	if (profile && profile->l3 == IBV_FLOW_SPEC_IPV6)
		SPEC(profile->l3, ibv_flow_spec_ipv6);
	if (profile)
		SPEC(profile->l4, ibv_flow_spec_tcp_udp);
	rule->size = (uint16_t)(end - rule_bytes);
	g->flow = ibv_create_flow(g->qp, rule);
	CHECK(g->flow);
}

static struct ibv_cq *make_cq(int cqe)
{
	struct ibv_cq *cq = ibv_create_cq(context, cqe, NULL, NULL, 0);

	CHECK(cq);
	return cq;
}

static void make_group(int number)
{
	struct group *g = &group[number];
	bool shared = draw(2);

	*g = (struct group){ .live = true, .queues = 1 + (int)draw(MAX_QUEUES) };
	g->cqs = shared ? 1 : g->queues;
	for (int i = 0; i < g->cqs; i++)
		g->cq[i] = make_cq(shared ? g->queues * MAX_RING : MAX_RING);
	for (int i = 0; i < g->queues; i++) {
		/* Powers of two and other lengths, from one WR on. */
		uint32_t ring = draw(2) ? 1u << draw(11) : 1 + draw(MAX_RING);
		make_queue(&g->queue[i], g->cq[shared ? 0 : i], ring, 1 + draw(3));
	}
	create_rule(g, &profiles[number]);
	made++;
}

/* Destroys a group. After its rule is destroyed no frame arrives, so the CQs hold all
 * completions. */
static void destroy_group(struct group *g)
{
	CHECK(!ibv_destroy_flow(g->flow));
	for (int i = 0; i < g->cqs; i++)
		while (poll_one(g, g->cq[i], NULL))
			;
	CHECK(ibv_destroy_wq(g->queue[0].wq) == EBUSY);
	CHECK(!ibv_destroy_qp(g->qp));
	CHECK(!ibv_destroy_rwq_ind_table(g->table));
	for (int i = 0; i < g->queues; i++) {
		struct queue *q = &g->queue[i];
		CHECK(!ibv_destroy_wq(q->wq));
		retire(q->region);
		q->live = false;
	}
	for (int i = 0; i < g->cqs; i++) {
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(g->cq[i], 1, &wc) == 0);
		CHECK(!ibv_destroy_cq(g->cq[i]));
	}
	g->live = false;
	destroyed++;
}

/* Moves a queue to RESET, directly or through ERR, and makes it ready again, with its rule
 * installed. */
static void reset_queue(struct group *g, struct queue *q, bool by_error)
{
	if (by_error) {
		double deadline = seconds() + HANG;
		set_state(q, IBV_WQS_ERR);
		while (q->completed < q->posted)
			if (!poll_one(g, q->cq, q))
				CHECK_SAYING(seconds() < deadline, "%lu WRs of a queue in error were not flushed",
					     (unsigned long)(q->posted - q->completed));
		set_state(q, IBV_WQS_RESET);
	} else {
		set_state(q, IBV_WQS_RESET);
		/* Completions from before the reset can still be polled. */
		while (poll_one(g, q->cq, NULL))
			;
	}
	forbid(&q->region);
	for (int i = 0; i < g->queues; i++)
		if (&g->queue[i] != q)
			post(&g->queue[i]);
	/* Random delay, during which a late write would fault. */
	usleep(draw(200));
	allow(&q->region);
	q->posted = q->completed = 0;
	q->generation = next_generation();
	set_state(q, IBV_WQS_RDY);
	post(q);
	resets++;
}

static void resize(struct group *g)
{
	struct ibv_cq *cq = g->cq[draw((uint32_t)g->cqs)];
	int least = g->cqs == 1 ? g->queues * MAX_RING : MAX_RING;

	CHECK(!ibv_resize_cq(cq, least + (int)draw(4096)));
	resizes++;
}

static void change_queues(void)
{
	int number = (int)draw(GROUPS);
	struct group *g = &group[number];

	if (!g->live) {
		make_group(number);
		return;
	}
	switch (draw(waits ? 6 : 2)) {
	case 0:
		destroy_group(g);
		break;
	case 1:
		resize(g);
		break;
	default:
		reset_queue(g, &g->queue[draw((uint32_t)g->queues)], draw(2));
	}
}

static uint64_t counter(const char *name)
{
	char path[256], text[64] = "";

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/%s", ibv_get_device_name(context->device), name);
	FILE *file = fopen(path, "r");
	CHECK_SAYING(file, "%s", path);
	CHECK_SAYING(fgets(text, sizeof text, file), "%s", path);
	fclose(file);
	return strtoull(text, NULL, 10);
}

static bool port_is_down(void)
{
	struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&ready, 1, 0) != 1)
		return false;
	CHECK(!ibv_get_async_event(context, &event));
	CHECK_SAYING(event.event_type == IBV_EVENT_PORT_ERR, "%s", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
	return true;
}

static int poll_all(void)
{
	int n = poll_group(&anchor);

	for (int i = 0; i < GROUPS; i++)
		n += poll_group(&group[i]);
	return n;
}

int main(int argc, char **argv)
{
	CHECK_SAYING(argc == 4, "usage: churn waits|loses COUNT SEED");
	waits = !strcmp(argv[1], "waits");
	count = strtoull(argv[2], NULL, 0);
	state = strtoull(argv[3], NULL, 0) * 0x9e3779b97f4a7c15 + 1;
	seen = calloc(1, count / 8 + 1);
	CHECK(seen);

	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	uint64_t frames_before = counter("counters/port_rcv_packets");
	uint64_t lost_before = counter("hw_counters/out_of_buffer");
	uint64_t flushes_before = counter("hw_counters/resp_cqe_flush_error");

	anchor = (struct group){ .live = true, .queues = 1, .cqs = 1, .cq = { make_cq(ANCHOR_RING) } };
	make_queue(&anchor.queue[0], anchor.cq[0], ANCHOR_RING, 1);
	create_rule(&anchor, NULL);

	double start = seconds(), last = start;
	/* Number of frames until the next change. The wire may wait during a change, so changes are
	 * spaced. */
	uint64_t next_change = 0;
	for (uint64_t turn = 0;; turn++) {
		if (poll_all())
			last = seconds();
		else
			sched_yield();
		if (received >= next_change) {
			change_queues();
			next_change = received + draw(1000);
		}
		if (turn % 256 == 0 && port_is_down())
			break;
		CHECK_SAYING(seconds() - last < HANG, "no frame after %lu frames", (unsigned long)received);
	}
	while (poll_all())
		;
	double took = seconds() - start;

	/* A NIC updates its counters periodically, not with every frame. */
	uint64_t frames, lost, flushes;
	double deadline = seconds() + HANG;
	do {
		frames = counter("counters/port_rcv_packets") - frames_before;
		lost = counter("hw_counters/out_of_buffer") - lost_before;
		flushes = counter("hw_counters/resp_cqe_flush_error") - flushes_before;
	} while ((frames < count || received + lost < count || flushes < flushed) && seconds() < deadline);
	printf("%lu frames in %.1f s: %lu received, %lu lost; %lu groups made, %lu destroyed, %lu resets, %lu flushes, "
	       "%lu resizes\n",
	       (unsigned long)frames, took, (unsigned long)received, (unsigned long)lost, (unsigned long)made,
	       (unsigned long)destroyed, (unsigned long)resets, (unsigned long)flushed, (unsigned long)resizes);
	CHECK(frames == count);
	CHECK(received + lost == count);
	CHECK_SAYING(flushes == flushed, "%lu", (unsigned long)flushes);
	/* Otherwise the run has not tested enough changes. */
	CHECK(destroyed > 10 && resizes > 10);
	CHECK(waits ? lost == 0 && resets > 10 && flushed > 0 : lost > 0);

	for (int i = 0; i < GROUPS; i++)
		if (group[i].live)
			destroy_group(&group[i]);
	destroy_group(&anchor);
	for (int i = 0; i < QUARANTINE; i++) {
		if (!quarantine[i].map)
			continue;
		CHECK(!ibv_dereg_mr(quarantine[i].mr));
		CHECK(!munmap(quarantine[i].map, quarantine[i].map_len));
	}
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	free(seen);
	return 0;
}
