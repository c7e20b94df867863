/* librdmacm.so.1 for programs that use the connection manager only to find their device: an id is bound to the first RDMA device
 * and its port 1, whatever the address. It creates no connections. */
#include <errno.h>
#include <stdlib.h>

#include <rdma/rdma_cma.h>

struct rdma_event_channel *rdma_create_event_channel(void)
{
    return calloc(1, sizeof(struct rdma_event_channel));
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
    free(channel);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
    *id = calloc(1, sizeof **id);
    if (!*id)
        return -1;
    (*id)->channel = channel;
    (*id)->context = context;
    (*id)->ps = ps;
    return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
    (void)address;
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (list && list[0])
        id->verbs = ibv_open_device(list[0]);
    if (list)
        ibv_free_device_list(list);
    id->port_num = 1;
    if (!id->verbs)
        errno = ENODEV;
    return id->verbs ? 0 : -1;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
    int failed = id->verbs ? ibv_close_device(id->verbs) : 0;
    free(id);
    return failed;
}
