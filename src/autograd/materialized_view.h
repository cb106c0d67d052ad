// Views whose data a redistribution moved: they share no memory with their base, so they are brought up to date before
// they are read once the base has changed, and what is written to them is written to the base. Both are collective: the
// base is gathered, since the view may hold any of its elements.
#pragma once

#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// The local tensor, up to date; an error where a moved view cannot be.
const at::Tensor& up_to_date_local(DTensorImpl& tensor);
// All values of a DTensor, moved views brought up to date: collective. Plain and undefined tensors as they are.
at::Tensor full_value(const at::Tensor& tensor);
// Whether what is written to this moved view can be written to its base.
bool is_base_writable(const DTensorImpl& view);
// Writes the moved view's values to its base, and to the base of that.
void write_to_base(DTensorImpl& view);

}  // namespace dtensor
