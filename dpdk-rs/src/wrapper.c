#include "wrapper.h"

int isthmus_errno(void) { return rte_errno; }

/* A driver that took the tag off says so; the switch wants packets whole. */
static int restore_vlan(struct rte_mbuf **m)
{
    if (!((*m)->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED))
        return 0;
    (*m)->ol_flags &= ~(RTE_MBUF_F_RX_VLAN_STRIPPED | RTE_MBUF_F_RX_VLAN);
    return rte_vlan_insert(m);
}

/* Receives packets in one piece. Those that cannot be put together are freed and counted in `broken`. */
uint16_t isthmus_receive(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n, uint16_t *broken)
{
    uint16_t got = rte_eth_rx_burst(port, queue, pkts, n), kept = 0;

    /* A driver that passes packets on has not read them: what is to be read of all of them is fetched at once. A packet begins where
     * drivers put it, behind the headroom of its buffer, unless somebody has put a header in front or taken one away. */
    for (uint16_t i = 0; i < got; i++) {
        rte_prefetch0(pkts[i]);
        rte_prefetch0((char *)pkts[i] + sizeof *pkts[i] + RTE_PKTMBUF_HEADROOM);
    }
    for (uint16_t i = 0; i < got; i++) {
        struct rte_mbuf *m = pkts[i];

        if ((m->nb_segs > 1 && rte_pktmbuf_linearize(m) != 0) || restore_vlan(&m) != 0) {
            /* rte_vlan_insert leaves the packet valid where it fails. */
            rte_pktmbuf_free(m);
            continue;
        }
        pkts[kept++] = m;
    }
    *broken = got - kept;
    return kept;
}

uint16_t isthmus_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n)
{
    return rte_eth_tx_burst(port, queue, pkts, n);
}

struct rte_mbuf *isthmus_alloc(struct rte_mempool *pool) { return rte_pktmbuf_alloc(pool); }
void isthmus_free(struct rte_mbuf *m) { rte_pktmbuf_free(m); }

struct rte_mbuf *isthmus_copy(const struct rte_mbuf *m, struct rte_mempool *pool)
{
    /* In smaller buffers it would be one of several segments. */
    if (m->pkt_len + RTE_PKTMBUF_HEADROOM > rte_pktmbuf_data_room_size(pool))
        return NULL;
    return rte_pktmbuf_copy(m, pool, 0, UINT32_MAX);
}

void isthmus_leave_udp(struct rte_mbuf *m, uint64_t family, uint16_t l2, uint16_t l3)
{
    m->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM | family;
    m->l2_len = l2;
    m->l3_len = l3;
}
