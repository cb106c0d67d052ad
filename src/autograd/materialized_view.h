// Materialized views: a redistribution copied their data, so they share no memory with their base. They are refreshed
// before a read if the base has changed, and writes to them are copied to the base. Both are collective. A slice moves
// the rows whose rank changes (sliced_view.h); for other views the base is gathered, since they may contain any of its
// elements.
#pragma once

#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// The refreshed local tensor. Throws if a materialized view cannot be refreshed.
const at::Tensor& up_to_date_local(DTensorImpl& tensor);
// All values of a DTensor, with materialized views refreshed: collective. Returns regular and undefined tensors
// unchanged.
at::Tensor full_value(const at::Tensor& tensor);
// Whether writes to this materialized view can be copied to its base.
bool is_base_writable(const DTensorImpl& view);
// Copies the view's values to its base, and on to the base's base.
void write_to_base(DTensorImpl& view);

}  // namespace dtensor
