/*
 * Flow counters and rules by mlx5dv matchers on a loopback wire. The frames received by each rule
 * and the counted frames must be exact. A final frame, which every rule set accepts, marks that the
 * frames before it have been processed.
 */
#define _GNU_SOURCE
#include "check.h"
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

enum { PORT = 1, WRS = 256, BUFFER = 128, LEN = 60 };
enum { TCP = 6, UDP = 17 };
/* EtherType of the frame that ends a batch (IEEE 802 local experiments). */
enum { ETHERTYPE_END = 0x88b5 };

struct match {
	size_t size;
	uint8_t bytes[256];
};
/* Byte offsets in `fte_match_set_lyr_2_4` (Programmer's Reference Manual). */
enum { ETHERTYPE = 6, PROTOCOL = 16, UDP_DPORT = 30 };
/* Byte offsets of fields of `fte_match_set_misc` and `fte_match_set_misc2` in the match
 * parameters. */
enum { ESP_SPI = 64 + 48, MPLS_OVER_UDP = 192 + 12 };

/* Queue pair with the number of frames received since the last `expect`. */
struct end {
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	uint8_t *buffers;
	struct ibv_mr *mr;
	int frames, tagged;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq;
static struct end a, b;
static uint8_t frame[LEN];
static struct ibv_mr *frame_mr;

static void post(struct end *end, uint64_t index)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)(end->buffers + index * BUFFER), .length = BUFFER, .lkey = end->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = index, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(end->qp, &wr, &bad));
}

static void to_state(struct ibv_qp *qp, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = PORT };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask));
}

static void set_up(struct end *end)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 2 * WRS, .wc_flags = IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_BYTE_LEN };

	CHECK(end->cq = ibv_create_cq_ex(context, &cq_attr));
	CHECK(end->buffers = calloc(WRS, BUFFER));
	CHECK(end->mr = ibv_reg_mr(pd, end->buffers, WRS * BUFFER, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RAW_PACKET, .send_cq = send_cq, .recv_cq = ibv_cq_ex_to_cq(end->cq),
		.cap = { .max_send_wr = 16, .max_recv_wr = WRS, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK(end->qp = ibv_create_qp(pd, &attr));
	to_state(end->qp, IBV_QPS_INIT, IBV_QP_PORT);
	for (uint64_t i = 0; i < WRS; i++)
		post(end, i);
	to_state(end->qp, IBV_QPS_RTR, 0);
	to_state(end->qp, IBV_QPS_RTS, 0);
}

static void tear_down(struct end *end)
{
	CHECK(!ibv_destroy_qp(end->qp));
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(end->cq)));
	CHECK(!ibv_dereg_mr(end->mr));
	free(end->buffers);
}

/* Polls all completions. Returns 1 if the frame that ends a batch was among them. */
static int take(struct end *end)
{
	struct ibv_poll_cq_attr none = { 0 };
	int last = 0, result = ibv_start_poll(end->cq, &none);

	if (result == ENOENT)
		return 0;
	CHECK(!result);
	do {
		uint64_t index = end->cq->wr_id;
		const uint8_t *bytes = end->buffers + index * BUFFER;

		CHECK_SAYING(end->cq->status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(end->cq->status));
		CHECK(ibv_wc_read_byte_len(end->cq) == LEN);
		if (bytes[12] == ETHERTYPE_END >> 8 && bytes[13] == (ETHERTYPE_END & 0xff)) {
			last = 1;
		} else {
			end->frames++;
			end->tagged += ibv_wc_read_flow_tag(end->cq) == 7;
		}
		post(end, index);
	} while (!ibv_next_poll(end->cq));
	ibv_end_poll(end->cq);
	return last;
}

static void send_one(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)frame, .length = LEN, .lkey = frame_mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	struct ibv_wc wc;
	double deadline = seconds() + HANG;

	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	while (!ibv_poll_cq(send_cq, 1, &wc))
		CHECK(seconds() < deadline);
	CHECK_SAYING(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
}

static void send_ipv4(uint8_t protocol, uint16_t port, int count)
{
	static const uint8_t head[] = {
		2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, LEN - 14, 0, 0, 0, 0, 64, 0, 0, 0,
		10, 0, 0, 1, 10, 0, 0, 2, 0x30, 0,
	};

	memset(frame, 0, sizeof frame);
	memcpy(frame, head, sizeof head);
	frame[23] = protocol;
	frame[36] = port >> 8;
	frame[37] = port & 0xff;
	frame[46] = 0x50;
	for (int i = 0; i < count; i++)
		send_one();
}

/* Waits until all sent frames have been processed and counted in `a` and `b`. */
static void settle(void)
{
	double deadline = seconds() + HANG;

	memset(frame, 0, sizeof frame);
	frame[5] = 1;
	frame[12] = ETHERTYPE_END >> 8;
	frame[13] = ETHERTYPE_END & 0xff;
	send_one();
	while (!take(&a))
		CHECK_SAYING(seconds() < deadline, "the final frame does not arrive");
	take(&b);
}

static void expect(const char *when, int at_a, int tagged, int at_b)
{
	settle();
	CHECK_SAYING(a.frames == at_a && a.tagged == tagged && b.frames == at_b, "%s: %d (%d tagged) and %d, not %d (%d) and %d",
		     when, a.frames, a.tagged, b.frames, at_a, tagged, at_b);
	a.frames = a.tagged = b.frames = 0;
}

/* ---- counters ---- */

static struct ibv_flow *counting(uint8_t protocol, struct ibv_counters *counters, int drops)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_ipv4_ext ipv4;
		struct ibv_flow_spec_counter_action count;
		struct ibv_flow_spec_action_drop drop;
	} __attribute__((packed, aligned(8))) rule = {
		.attr = {
			.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .priority = 3, .port = PORT,
			.num_of_specs = drops ? 3 : 2,
		},
		.ipv4 = {
			.type = IBV_FLOW_SPEC_IPV4_EXT, .size = sizeof rule.ipv4, .val.proto = protocol, .mask.proto = 0xff,
		},
		.count = { .type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof rule.count, .counters = counters },
		.drop = { .type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof rule.drop },
	};

	/* Specs follow each other without padding. */
	return ibv_create_flow(a.qp, &rule.attr);
}

static void attach(struct ibv_counters *counters, enum ibv_counter_description what, uint32_t index, int expected)
{
	struct ibv_counter_attach_attr attr = { .counter_desc = what, .index = index };

	CHECK(ibv_attach_counters_point_flow(counters, &attr, NULL) == expected);
}

static void expect_counted(const char *when, struct ibv_counters *counters, uint64_t packets)
{
	uint64_t numbers[4] = { 1, 2, 3, 4 };

	CHECK(!ibv_read_counters(counters, numbers, 4, IBV_READ_COUNTERS_ATTR_PREFER_CACHED));
	CHECK_SAYING(numbers[3] == packets && numbers[1] == packets * LEN && !numbers[0] && !numbers[2],
		     "%s: %lu packets, %lu bytes, not %lu", when, (unsigned long)numbers[3], (unsigned long)numbers[1],
		     (unsigned long)packets);
}

static void counters(void)
{
	struct ibv_counters_init_attr attr = { 0 };
	struct ibv_counters *counters = ibv_create_counters(context, &attr);
	uint64_t numbers[4];

	CHECK(counters);
	attach(counters, IBV_COUNTER_PACKETS, 3, 0);
	attach(counters, IBV_COUNTER_BYTES, 1, 0);
	struct ibv_flow *udp = counting(UDP, counters, 0);
	CHECK(udp);
	attach(counters, IBV_COUNTER_BYTES, 2, EBUSY);
	expect_counted("before", counters, 0);
	send_ipv4(UDP, 53, 5);
	send_ipv4(TCP, 53, 3);
	expect("counted and not", 5, 0, 0);
	expect_counted("udp", counters, 5);

	/* A second rule with the same counters drops. A third with the same match counts no frame
	 * twice. */
	struct ibv_flow *tcp = counting(TCP, counters, 1), *again = counting(UDP, counters, 0);
	CHECK(tcp && again);
	send_ipv4(TCP, 53, 2);
	send_ipv4(UDP, 53, 1);
	expect("dropped and counted", 1, 0, 0);
	expect_counted("udp and tcp", counters, 8);
	CHECK(!ibv_destroy_flow(again));

	CHECK_SAYING(ibv_read_counters(counters, numbers, 3, 0) == EINVAL, "array too short for the last counter");
	CHECK(ibv_destroy_counters(counters) == EBUSY);
	CHECK(!ibv_destroy_flow(tcp));
	CHECK(!ibv_destroy_flow(udp));
	CHECK_SAYING(ibv_read_counters(counters, numbers, 4, 0) == EINVAL, "counters without a rule");

	/* Bound again, the counters continue from their values, because the NIC's counter is the same. */
	CHECK(udp = counting(UDP, counters, 0));
	send_ipv4(UDP, 53, 1);
	expect("bound again", 1, 0, 0);
	expect_counted("bound again", counters, 9);
	CHECK(!ibv_destroy_flow(udp));
	CHECK(!ibv_destroy_counters(counters));
}

/* ---- matchers ---- */

/* Creates a matcher; `criteria` has one bit for each mask section that is compared. */
static struct mlx5dv_flow_matcher *matcher_of(uint8_t criteria, struct match mask, uint16_t priority)
{
	struct mlx5dv_flow_matcher_attr attr = {
		.type = IBV_FLOW_ATTR_NORMAL, .priority = priority, .match_criteria_enable = criteria,
		.match_mask = (struct mlx5dv_flow_match_parameters *)&mask,
	};
	struct mlx5dv_flow_matcher *made = mlx5dv_create_flow_matcher(context, &attr);

	CHECK(made);
	return made;
}

static struct mlx5dv_flow_matcher *matcher(struct match mask, uint16_t priority)
{
	return matcher_of(1, mask, priority);
}

static struct ibv_flow *flow(struct mlx5dv_flow_matcher *matcher, struct match value, size_t count,
			     struct mlx5dv_flow_action_attr *actions)
{
	struct ibv_flow *made =
		mlx5dv_create_flow(matcher, (struct mlx5dv_flow_match_parameters *)&value, count, actions);

	CHECK(made);
	return made;
}

static struct match ethertype(uint16_t type)
{
	return (struct match){ .size = 64, .bytes = { [ETHERTYPE] = type >> 8, [ETHERTYPE + 1] = type & 0xff } };
}

static struct match udp_port(uint8_t protocol, uint16_t port)
{
	return (struct match){
		.size = 64,
		.bytes = { [PROTOCOL] = protocol, [UDP_DPORT] = port >> 8, [UDP_DPORT + 1] = port & 0xff },
	};
}

static void matchers(void)
{
	struct mlx5dv_flow_action_attr to_a[] = {
		{ .type = MLX5DV_FLOW_ACTION_DEST_IBV_QP, .qp = a.qp },
		{ .type = MLX5DV_FLOW_ACTION_TAG, .tag_value = 7 },
	};
	struct mlx5dv_flow_action_attr to_b = { .type = MLX5DV_FLOW_ACTION_DEST_IBV_QP, .qp = b.qp };
	struct mlx5dv_flow_action_attr miss = { .type = MLX5DV_FLOW_ACTION_DEFAULT_MISS };
	struct mlx5dv_flow_action_attr drop = { .type = MLX5DV_FLOW_ACTION_DROP };
	struct mlx5dv_flow_matcher *first = matcher(udp_port(0xff, 0xffff), 1), *middle = matcher(udp_port(0xff, 0xffff), 2),
				   *last = matcher(ethertype(0xffff), 3);
	struct ibv_flow *all = flow(last, ethertype(0x0800), 2, to_a);

	send_ipv4(UDP, 53, 3);
	send_ipv4(TCP, 53, 2);
	expect("one rule for IPv4", 5, 5, 0);

	/* Passed to the host's network stack: a rule with lower priority does not match these frames. */
	struct ibv_flow *hosts = flow(middle, udp_port(UDP, 53), 1, &miss);
	send_ipv4(UDP, 53, 4);
	send_ipv4(UDP, 54, 2);
	send_ipv4(TCP, 53, 1);
	expect("port 53 goes to the host", 3, 3, 0);

	struct ibv_flow *before = flow(first, udp_port(UDP, 53), 1, &to_b);
	send_ipv4(UDP, 53, 4);
	send_ipv4(UDP, 54, 2);
	expect("a rule of higher priority", 2, 2, 4);
	CHECK(!ibv_destroy_flow(before));

	struct ibv_flow *dropped = flow(first, udp_port(UDP, 54), 1, &drop);
	send_ipv4(UDP, 53, 4);
	send_ipv4(UDP, 54, 2);
	send_ipv4(UDP, 55, 1);
	expect("one dropped, one for the host", 1, 1, 0);
	CHECK(!ibv_destroy_flow(dropped));
	CHECK(!ibv_destroy_flow(hosts));

	/* Two rules with the same match: each gets a copy. */
	struct ibv_flow *other = flow(last, ethertype(0x0800), 1, &to_b);
	send_ipv4(UDP, 53, 2);
	expect("two rules with the same match", 2, 2, 2);
	CHECK(!ibv_destroy_flow(other));

	CHECK(ibv_destroy_qp(a.qp) == EBUSY);
	CHECK(mlx5dv_destroy_flow_matcher(last) == EBUSY);
	CHECK(!ibv_destroy_flow(all));
	send_ipv4(UDP, 53, 1);
	expect("no rule", 0, 0, 0);
	CHECK(!mlx5dv_destroy_flow_matcher(first));
	CHECK(!mlx5dv_destroy_flow_matcher(middle));
	CHECK(!mlx5dv_destroy_flow_matcher(last));
}

/* ---- labels and security parameters indexes ---- */

enum { GRE = 47, ESP = 50, MPLS_PORT = 6635 };
static const uint8_t ENTRY[4] = { 0x12, 0x34, 0x51, 64 };

static uint32_t word(const uint8_t *bytes)
{
	uint32_t word;

	memcpy(&word, bytes, sizeof word);
	return word;
}

/* Sends one frame each with a label stack entry after Ethernet, GRE and UDP, and an SPI with the
 * same bytes. */
static void send_labels(void)
{
	send_ipv4(ESP, 0, 0);
	frame[12] = 0x88;
	frame[13] = 0x47;
	memcpy(frame + 14, ENTRY, 4);
	send_one();
	send_ipv4(GRE, 0, 0);
	memcpy(frame + 34, (uint8_t[]){ 0, 0, 0x88, 0x47 }, 4);
	memcpy(frame + 38, ENTRY, 4);
	send_one();
	send_ipv4(UDP, MPLS_PORT, 0);
	memcpy(frame + 42, ENTRY, 4);
	send_one();
	send_ipv4(ESP, 0, 0);
	memcpy(frame + 34, ENTRY, 4);
	send_one();
}

/* Creates a rule with a spec of type `type` after an optional spec of type `before`. */
static struct ibv_flow *create_nested(enum ibv_flow_spec_type before, enum ibv_flow_spec_type type,
				      const uint8_t value[4])
{
	struct {
		struct ibv_flow_attr attr;
		uint8_t specs[64];
	} rule = { .attr = { .type = IBV_FLOW_ATTR_NORMAL, .priority = 4, .port = PORT, .num_of_specs = 1 } };
	struct ibv_flow_spec_tcp_udp udp = { .type = before, .size = sizeof udp };
	struct ibv_flow_spec_gre gre = { .type = before, .size = sizeof gre };
	struct ibv_flow_spec_mpls mpls = {
		.type = type, .size = sizeof mpls, .val.label = word(value), .mask.label = UINT32_MAX,
	};
	struct ibv_flow_spec_esp esp = {
		.type = type, .size = sizeof esp, .val.spi = word(value), .mask.spi = UINT32_MAX,
	};
	size_t at = 0;

	if (before == IBV_FLOW_SPEC_UDP)
		memcpy(rule.specs, &udp, at = sizeof udp);
	else if (before == IBV_FLOW_SPEC_GRE)
		memcpy(rule.specs, &gre, at = sizeof gre);
	rule.attr.num_of_specs += at > 0;
	if (type == IBV_FLOW_SPEC_MPLS)
		memcpy(rule.specs + at, &mpls, sizeof mpls);
	else
		memcpy(rule.specs + at, &esp, sizeof esp);
	rule.attr.size = sizeof rule;
	return ibv_create_flow(a.qp, &rule.attr);
}

static void labels(void)
{
	static const struct {
		const char *name;
		enum ibv_flow_spec_type before, type;
	} rules[] = {
		{ "a label", 0, IBV_FLOW_SPEC_MPLS },
		{ "a label in GRE", IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_MPLS },
		{ "a label in UDP", IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_MPLS },
		{ "an SPI", 0, IBV_FLOW_SPEC_ESP },
	};
	struct mlx5dv_flow_action_attr to_b = { .type = MLX5DV_FLOW_ACTION_DEST_IBV_QP, .qp = b.qp };
	struct match all = { .size = 256 }, entry = { .size = 256 };

	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
		struct ibv_flow *right = create_nested(rules[i].before, rules[i].type, ENTRY);
		struct ibv_flow *wrong = create_nested(rules[i].before, rules[i].type,
							       (uint8_t[]){ 0x12, 0x34, 0x61, 64 });

		CHECK_SAYING(right && wrong, "%s", rules[i].name);
		send_labels();
		expect(rules[i].name, 1, 0, 0);
		CHECK(!ibv_destroy_flow(right) && !ibv_destroy_flow(wrong));
	}

	memset(all.bytes + ESP_SPI, 0xff, 4);
	memcpy(entry.bytes + ESP_SPI, ENTRY, 4);
	struct mlx5dv_flow_matcher *spi = matcher_of(1 << 1, all, 4);
	struct ibv_flow *by_spi = flow(spi, entry, 1, &to_b);
	memset(all.bytes, 0, sizeof all.bytes);
	memset(entry.bytes, 0, sizeof entry.bytes);
	memset(all.bytes + MPLS_OVER_UDP, 0xff, 4);
	memcpy(entry.bytes + MPLS_OVER_UDP, ENTRY, 4);
	struct mlx5dv_flow_matcher *in_udp = matcher_of(1 << 3, all, 5);
	struct ibv_flow *by_label = flow(in_udp, entry, 1, &to_b);
	send_labels();
	expect("an SPI and a label by matchers", 0, 0, 2);
	CHECK(!ibv_destroy_flow(by_spi) && !ibv_destroy_flow(by_label));
	CHECK(!mlx5dv_destroy_flow_matcher(spi) && !mlx5dv_destroy_flow_matcher(in_udp));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(send_cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	CHECK(frame_mr = ibv_reg_mr(pd, frame, sizeof frame, 0));
	set_up(&a);
	set_up(&b);
	struct mlx5dv_flow_matcher *ends = matcher(ethertype(0xffff), 0);
	struct mlx5dv_flow_action_attr to_a = { .type = MLX5DV_FLOW_ACTION_DEST_IBV_QP, .qp = a.qp };
	struct ibv_flow *end = flow(ends, ethertype(ETHERTYPE_END), 1, &to_a);

	counters();
	matchers();
	labels();

	CHECK(!ibv_destroy_flow(end));
	CHECK(!mlx5dv_destroy_flow_matcher(ends));
	tear_down(&a);
	tear_down(&b);
	CHECK(!ibv_dereg_mr(frame_mr));
	CHECK(!ibv_destroy_cq(send_cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	puts("ok");
	return 0;
}
