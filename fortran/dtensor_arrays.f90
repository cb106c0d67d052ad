! Arrays of the program as the C interface describes them: address, sizes and strides, without a copy.
module dtensor_arrays
  use, intrinsic :: iso_c_binding
  implicit none
  private

  integer, parameter, public :: dtensor_float32 = 0, dtensor_float64 = 1, dtensor_int32 = 2, dtensor_int64 = 3, &
                                dtensor_int8 = 4, dtensor_int16 = 5
  integer, parameter, public :: dtensor_max_ndim = 5  ! of arrays

  ! An array, or a section with positive strides, of the program. It refers to the program's memory.
  type, public :: dtensor_array
    type(c_ptr) :: address = c_null_ptr  ! of the first element
    integer :: dtype = 0, ndim = 0
    integer(c_int64_t) :: sizes(dtensor_max_ndim) = 0, strides(dtensor_max_ndim) = 1  ! strides in elements
  end type

  ! dtensor_view(array): describes an array of 1 to 5 dimensions of reals of 4 or 8 bytes or integers of 1, 2, 4 or
  ! 8 bytes. The array has the attribute target, so that its address stays valid.
  interface dtensor_view
    module procedure view_r32_1, view_r32_2, view_r32_3, view_r32_4, view_r32_5
    module procedure view_r64_1, view_r64_2, view_r64_3, view_r64_4, view_r64_5
    module procedure view_i32_1, view_i32_2, view_i32_3, view_i32_4, view_i32_5
    module procedure view_i64_1, view_i64_2, view_i64_3, view_i64_4, view_i64_5
    module procedure view_i16_1, view_i16_2, view_i16_3, view_i16_4, view_i16_5
    module procedure view_i8_1, view_i8_2, view_i8_3, view_i8_4, view_i8_5
  end interface
  public :: dtensor_view

contains

  ! Elements from one address to another, if the dimension has a second element.
  integer(c_int64_t) function distance(first, second, bits)
    type(c_ptr), intent(in) :: first, second
    integer, intent(in) :: bits
    distance = (transfer(second, 0_c_intptr_t) - transfer(first, 0_c_intptr_t)) / (bits / 8)
  end function

  ! The functions of one number of dimensions differ in their type only.
  function view_r32_1(array) result(view)
    real(c_float), intent(inout), target :: array(:)
    integer, parameter :: dtype = dtensor_float32
    include 'dtensor_view_1.inc'
  end function
  function view_r32_2(array) result(view)
    real(c_float), intent(inout), target :: array(:,:)
    integer, parameter :: dtype = dtensor_float32
    include 'dtensor_view_2.inc'
  end function
  function view_r32_3(array) result(view)
    real(c_float), intent(inout), target :: array(:,:,:)
    integer, parameter :: dtype = dtensor_float32
    include 'dtensor_view_3.inc'
  end function
  function view_r32_4(array) result(view)
    real(c_float), intent(inout), target :: array(:,:,:,:)
    integer, parameter :: dtype = dtensor_float32
    include 'dtensor_view_4.inc'
  end function
  function view_r32_5(array) result(view)
    real(c_float), intent(inout), target :: array(:,:,:,:,:)
    integer, parameter :: dtype = dtensor_float32
    include 'dtensor_view_5.inc'
  end function
  function view_r64_1(array) result(view)
    real(c_double), intent(inout), target :: array(:)
    integer, parameter :: dtype = dtensor_float64
    include 'dtensor_view_1.inc'
  end function
  function view_r64_2(array) result(view)
    real(c_double), intent(inout), target :: array(:,:)
    integer, parameter :: dtype = dtensor_float64
    include 'dtensor_view_2.inc'
  end function
  function view_r64_3(array) result(view)
    real(c_double), intent(inout), target :: array(:,:,:)
    integer, parameter :: dtype = dtensor_float64
    include 'dtensor_view_3.inc'
  end function
  function view_r64_4(array) result(view)
    real(c_double), intent(inout), target :: array(:,:,:,:)
    integer, parameter :: dtype = dtensor_float64
    include 'dtensor_view_4.inc'
  end function
  function view_r64_5(array) result(view)
    real(c_double), intent(inout), target :: array(:,:,:,:,:)
    integer, parameter :: dtype = dtensor_float64
    include 'dtensor_view_5.inc'
  end function
  function view_i32_1(array) result(view)
    integer(c_int32_t), intent(inout), target :: array(:)
    integer, parameter :: dtype = dtensor_int32
    include 'dtensor_view_1.inc'
  end function
  function view_i32_2(array) result(view)
    integer(c_int32_t), intent(inout), target :: array(:,:)
    integer, parameter :: dtype = dtensor_int32
    include 'dtensor_view_2.inc'
  end function
  function view_i32_3(array) result(view)
    integer(c_int32_t), intent(inout), target :: array(:,:,:)
    integer, parameter :: dtype = dtensor_int32
    include 'dtensor_view_3.inc'
  end function
  function view_i32_4(array) result(view)
    integer(c_int32_t), intent(inout), target :: array(:,:,:,:)
    integer, parameter :: dtype = dtensor_int32
    include 'dtensor_view_4.inc'
  end function
  function view_i32_5(array) result(view)
    integer(c_int32_t), intent(inout), target :: array(:,:,:,:,:)
    integer, parameter :: dtype = dtensor_int32
    include 'dtensor_view_5.inc'
  end function
  function view_i64_1(array) result(view)
    integer(c_int64_t), intent(inout), target :: array(:)
    integer, parameter :: dtype = dtensor_int64
    include 'dtensor_view_1.inc'
  end function
  function view_i64_2(array) result(view)
    integer(c_int64_t), intent(inout), target :: array(:,:)
    integer, parameter :: dtype = dtensor_int64
    include 'dtensor_view_2.inc'
  end function
  function view_i64_3(array) result(view)
    integer(c_int64_t), intent(inout), target :: array(:,:,:)
    integer, parameter :: dtype = dtensor_int64
    include 'dtensor_view_3.inc'
  end function
  function view_i64_4(array) result(view)
    integer(c_int64_t), intent(inout), target :: array(:,:,:,:)
    integer, parameter :: dtype = dtensor_int64
    include 'dtensor_view_4.inc'
  end function
  function view_i64_5(array) result(view)
    integer(c_int64_t), intent(inout), target :: array(:,:,:,:,:)
    integer, parameter :: dtype = dtensor_int64
    include 'dtensor_view_5.inc'
  end function
  function view_i16_1(array) result(view)
    integer(c_int16_t), intent(inout), target :: array(:)
    integer, parameter :: dtype = dtensor_int16
    include 'dtensor_view_1.inc'
  end function
  function view_i16_2(array) result(view)
    integer(c_int16_t), intent(inout), target :: array(:,:)
    integer, parameter :: dtype = dtensor_int16
    include 'dtensor_view_2.inc'
  end function
  function view_i16_3(array) result(view)
    integer(c_int16_t), intent(inout), target :: array(:,:,:)
    integer, parameter :: dtype = dtensor_int16
    include 'dtensor_view_3.inc'
  end function
  function view_i16_4(array) result(view)
    integer(c_int16_t), intent(inout), target :: array(:,:,:,:)
    integer, parameter :: dtype = dtensor_int16
    include 'dtensor_view_4.inc'
  end function
  function view_i16_5(array) result(view)
    integer(c_int16_t), intent(inout), target :: array(:,:,:,:,:)
    integer, parameter :: dtype = dtensor_int16
    include 'dtensor_view_5.inc'
  end function
  function view_i8_1(array) result(view)
    integer(c_int8_t), intent(inout), target :: array(:)
    integer, parameter :: dtype = dtensor_int8
    include 'dtensor_view_1.inc'
  end function
  function view_i8_2(array) result(view)
    integer(c_int8_t), intent(inout), target :: array(:,:)
    integer, parameter :: dtype = dtensor_int8
    include 'dtensor_view_2.inc'
  end function
  function view_i8_3(array) result(view)
    integer(c_int8_t), intent(inout), target :: array(:,:,:)
    integer, parameter :: dtype = dtensor_int8
    include 'dtensor_view_3.inc'
  end function
  function view_i8_4(array) result(view)
    integer(c_int8_t), intent(inout), target :: array(:,:,:,:)
    integer, parameter :: dtype = dtensor_int8
    include 'dtensor_view_4.inc'
  end function
  function view_i8_5(array) result(view)
    integer(c_int8_t), intent(inout), target :: array(:,:,:,:,:)
    integer, parameter :: dtype = dtensor_int8
    include 'dtensor_view_5.inc'
  end function
end module
