! Arrays of the program as the C interface describes them: address, sizes and strides, without a copy.
module dtensor_arrays
  use, intrinsic :: iso_c_binding
  implicit none
  private

  integer, parameter, public :: dtensor_float32 = 0, dtensor_float64 = 1, dtensor_int32 = 2, dtensor_int64 = 3

  ! An array, or a section with positive strides, of the program. It refers to the program's memory.
  type, public :: dtensor_array
    type(c_ptr) :: address = c_null_ptr  ! of the first element
    integer :: dtype = 0, ndim = 0
    integer(c_int64_t) :: sizes(4) = 0, strides(4) = 1  ! strides in elements
  end type

  ! dtensor_view(array): describes an array of 1 to 4 dimensions of reals of 4 or 8 bytes. The array has the attribute
  ! target, so that its address stays valid.
  interface dtensor_view
    module procedure view_r32_1, view_r32_2, view_r32_3, view_r32_4
    module procedure view_r64_1, view_r64_2, view_r64_3, view_r64_4
  end interface
  public :: dtensor_view

contains

  ! Elements from one address to another, if the dimension has a second element.
  integer(c_int64_t) function distance(first, second, bytes)
    type(c_ptr), intent(in) :: first, second
    integer, intent(in) :: bytes
    distance = (transfer(second, 0_c_intptr_t) - transfer(first, 0_c_intptr_t)) / bytes
  end function

  function view_r32_1(array) result(view)
    real(c_float), intent(inout), target :: array(:)
    type(dtensor_array) :: view
    view%dtype = dtensor_float32
    view%ndim = 1
    view%sizes(:1) = shape(array)
    if (size(array) == 0) return
    view%address = c_loc(array(1))
    if (size(array, 1) > 1) view%strides(1) = distance(view%address, c_loc(array(2)), 4)
  end function

  function view_r32_2(array) result(view)
    real(c_float), intent(inout), target :: array(:,:)
    type(dtensor_array) :: view
    view%dtype = dtensor_float32
    view%ndim = 2
    view%sizes(:2) = shape(array)
    if (size(array) == 0) return
    view%address = c_loc(array(1, 1))
    if (size(array, 1) > 1) view%strides(1) = distance(view%address, c_loc(array(2, 1)), 4)
    if (size(array, 2) > 1) view%strides(2) = distance(view%address, c_loc(array(1, 2)), 4)
  end function

  function view_r32_3(array) result(view)
    real(c_float), intent(inout), target :: array(:,:,:)
    type(dtensor_array) :: view
    view%dtype = dtensor_float32
    view%ndim = 3
    view%sizes(:3) = shape(array)
    if (size(array) == 0) return
    view%address = c_loc(array(1, 1, 1))
    if (size(array, 1) > 1) view%strides(1) = distance(view%address, c_loc(array(2, 1, 1)), 4)
    if (size(array, 2) > 1) view%strides(2) = distance(view%address, c_loc(array(1, 2, 1)), 4)
    if (size(array, 3) > 1) view%strides(3) = distance(view%address, c_loc(array(1, 1, 2)), 4)
  end function

  function view_r32_4(array) result(view)
    real(c_float), intent(inout), target :: array(:,:,:,:)
    type(dtensor_array) :: view
    view%dtype = dtensor_float32
    view%ndim = 4
    view%sizes(:4) = shape(array)
    if (size(array) == 0) return
    view%address = c_loc(array(1, 1, 1, 1))
    if (size(array, 1) > 1) view%strides(1) = distance(view%address, c_loc(array(2, 1, 1, 1)), 4)
    if (size(array, 2) > 1) view%strides(2) = distance(view%address, c_loc(array(1, 2, 1, 1)), 4)
    if (size(array, 3) > 1) view%strides(3) = distance(view%address, c_loc(array(1, 1, 2, 1)), 4)
    if (size(array, 4) > 1) view%strides(4) = distance(view%address, c_loc(array(1, 1, 1, 2)), 4)
  end function

  function view_r64_1(array) result(view)
    real(c_double), intent(inout), target :: array(:)
    type(dtensor_array) :: view
    view%dtype = dtensor_float64
    view%ndim = 1
    view%sizes(:1) = shape(array)
    if (size(array) == 0) return
    view%address = c_loc(array(1))
    if (size(array, 1) > 1) view%strides(1) = distance(view%address, c_loc(array(2)), 8)
  end function

  function view_r64_2(array) result(view)
    real(c_double), intent(inout), target :: array(:,:)
    type(dtensor_array) :: view
    view%dtype = dtensor_float64
    view%ndim = 2
    view%sizes(:2) = shape(array)
    if (size(array) == 0) return
    view%address = c_loc(array(1, 1))
    if (size(array, 1) > 1) view%strides(1) = distance(view%address, c_loc(array(2, 1)), 8)
    if (size(array, 2) > 1) view%strides(2) = distance(view%address, c_loc(array(1, 2)), 8)
  end function

  function view_r64_3(array) result(view)
    real(c_double), intent(inout), target :: array(:,:,:)
    type(dtensor_array) :: view
    view%dtype = dtensor_float64
    view%ndim = 3
    view%sizes(:3) = shape(array)
    if (size(array) == 0) return
    view%address = c_loc(array(1, 1, 1))
    if (size(array, 1) > 1) view%strides(1) = distance(view%address, c_loc(array(2, 1, 1)), 8)
    if (size(array, 2) > 1) view%strides(2) = distance(view%address, c_loc(array(1, 2, 1)), 8)
    if (size(array, 3) > 1) view%strides(3) = distance(view%address, c_loc(array(1, 1, 2)), 8)
  end function

  function view_r64_4(array) result(view)
    real(c_double), intent(inout), target :: array(:,:,:,:)
    type(dtensor_array) :: view
    view%dtype = dtensor_float64
    view%ndim = 4
    view%sizes(:4) = shape(array)
    if (size(array) == 0) return
    view%address = c_loc(array(1, 1, 1, 1))
    if (size(array, 1) > 1) view%strides(1) = distance(view%address, c_loc(array(2, 1, 1, 1)), 8)
    if (size(array, 2) > 1) view%strides(2) = distance(view%address, c_loc(array(1, 2, 1, 1)), 8)
    if (size(array, 3) > 1) view%strides(3) = distance(view%address, c_loc(array(1, 1, 2, 1)), 8)
    if (size(array, 4) > 1) view%strides(4) = distance(view%address, c_loc(array(1, 1, 1, 2)), 8)
  end function

end module
