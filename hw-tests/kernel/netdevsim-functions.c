// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Ports of physical functions and of subfunctions for netdevsim, whose own are those of wires and of virtual functions: as the card of
 * a DPU has them. `devlink port add DEVICE/INDEX flavour pcipf|pcisf pfnum N …` makes one, `devlink port function set … hw_addr` gives
 * the function an address. scripts/kernel-lab puts this file into netdevsim's dev.c. */

static int __nsim_dev_port_add(struct nsim_dev *nsim_dev, enum nsim_dev_port_type type, unsigned int port_index);
static void __nsim_dev_port_del(struct nsim_dev_port *nsim_dev_port);

/* What the port is that is being added; its lock is held from there to where this is read. */
static const struct devlink_port_new_attrs *functions_next;
static DEFINE_MUTEX(functions_lock);

/* What a port is: that which is added, or a virtual function of the physical one that has a port. */
static void functions_attrs(struct nsim_dev *nsim_dev, struct devlink_port_attrs *attrs)
{
	const struct devlink_port_new_attrs *next = functions_next;
	const struct devlink_port_attrs *of;
	struct nsim_dev_port *port;

	if (!next && attrs->flavour == DEVLINK_PORT_FLAVOUR_PCI_VF) {
		list_for_each_entry(port, &nsim_dev->port_list, list) {
			of = &port->devlink_port.attrs;
			if (of->flavour != DEVLINK_PORT_FLAVOUR_PCI_PF)
				continue;
			attrs->pci_vf.controller = of->pci_pf.controller;
			attrs->pci_vf.pf = of->pci_pf.pf;
			attrs->pci_vf.external = of->pci_pf.external;
			break;
		}
	}
	if (!next)
		return;
	attrs->flavour = next->flavour;
	if (next->flavour == DEVLINK_PORT_FLAVOUR_PCI_PF) {
		attrs->pci_pf.controller = next->controller;
		attrs->pci_pf.pf = next->pfnum;
		attrs->pci_pf.external = next->controller_valid;
	} else {
		attrs->pci_sf.controller = next->controller;
		attrs->pci_sf.pf = next->pfnum;
		attrs->pci_sf.sf = next->sfnum;
		attrs->pci_sf.external = next->controller_valid;
	}
}

static bool functions_is_one(const struct devlink_port *port)
{
	return port->attrs.flavour == DEVLINK_PORT_FLAVOUR_PCI_PF || port->attrs.flavour == DEVLINK_PORT_FLAVOUR_PCI_SF;
}

static int functions_port_new(struct devlink *devlink, const struct devlink_port_new_attrs *attrs,
			      struct netlink_ext_ack *extack, unsigned int *new_port_index)
{
	bool sf = attrs->flavour == DEVLINK_PORT_FLAVOUR_PCI_SF && attrs->sfnum_valid;
	int err;

	if (attrs->flavour != DEVLINK_PORT_FLAVOUR_PCI_PF && !sf)
		return -EOPNOTSUPP;
	if (!attrs->port_index_valid) {
		NL_SET_ERR_MSG_MOD(extack, "A port needs a number");
		return -EINVAL;
	}
	mutex_lock(&functions_lock);
	functions_next = attrs;
	err = __nsim_dev_port_add(devlink_priv(devlink), NSIM_DEV_PORT_TYPE_PF, attrs->port_index);
	functions_next = NULL;
	mutex_unlock(&functions_lock);
	*new_port_index = attrs->port_index;
	return err;
}

static int functions_port_del(struct devlink *devlink, unsigned int port_index, struct netlink_ext_ack *extack)
{
	struct nsim_dev *nsim_dev = devlink_priv(devlink);
	struct nsim_dev_port *port;

	list_for_each_entry(port, &nsim_dev->port_list, list) {
		if (port->port_index == port_index && functions_is_one(&port->devlink_port)) {
			__nsim_dev_port_del(port);
			return 0;
		}
	}
	return -EOPNOTSUPP;
}

static int functions_address_get(struct devlink_port *port, u8 *hw_addr, int *hw_addr_len, struct netlink_ext_ack *extack)
{
	if (!functions_is_one(port))
		return -EOPNOTSUPP;
	memcpy(hw_addr, container_of(port, struct nsim_dev_port, devlink_port)->function_address, ETH_ALEN);
	*hw_addr_len = ETH_ALEN;
	return 0;
}

static int functions_address_set(struct devlink_port *port, const u8 *hw_addr, int hw_addr_len, struct netlink_ext_ack *extack)
{
	if (!functions_is_one(port) || hw_addr_len != ETH_ALEN)
		return -EOPNOTSUPP;
	memcpy(container_of(port, struct nsim_dev_port, devlink_port)->function_address, hw_addr, ETH_ALEN);
	return 0;
}
