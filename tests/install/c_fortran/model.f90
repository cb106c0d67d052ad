program model
  use mpi_f08
  use dtensor
  implicit none
  integer, parameter :: rows = 50, steps = 200
  real(8), target :: field(0:rows + 1, 3), goal(rows, 2)  ! this rank's rows, with ghosts
  real(8) :: value, first
  integer(kind(MPI_COMM_WORLD%mpi_val)) :: ranks, rank
  integer :: i, j, step
  type(dtensor_mesh) :: mesh
  type(dtensor_module) :: layers
  type(dtensor_optimizer) :: adam
  type(dtensor_tensor) :: x, y, prediction, loss

  call MPI_Init()
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  field = 0
  do i = 1, rows
    field(i, :) = [(sin(1d0 + i + rows * rank + 2 * j), j=0, 2)]
    goal(i, :) = field(i, :2) * field(i, 2:)
  end do

  call dtensor_mesh_from_mpi(MPI_COMM_WORLD%mpi_val, [int(ranks)], mesh)       ! or an integer communicator
  call dtensor_module_create(mesh, 'Perceptron', [3, 16, 2], layers, activation='tanh', seed=7)
  call dtensor_optimizer_adamw(layers, 1d-2, adam)
  call dtensor_from_host(mesh, dtensor_view(field(1:rows, :)), '[S(0)]', x)    ! the section is not copied
  call dtensor_from_host(mesh, dtensor_view(goal), '[S(0)]', y)
  do step = 1, steps
    call dtensor_zero_grad(adam)
    call dtensor_forward(layers, x, prediction)
    call dtensor_mse_loss(prediction, y, loss)
    call dtensor_item(loss, value)
    call dtensor_backward(loss)
    call dtensor_step(adam)
    call dtensor_free(prediction)
    call dtensor_free(loss)
    if (step == 1) first = value
  end do
  if (rank == 0) print '(a, i0, a, f0.3, a, f0.3)', 'Fortran on ', ranks, ' ranks: loss ', first, ', then ', value
  call dtensor_free(x)
  call dtensor_free(y)
  call dtensor_free(adam)
  call dtensor_free(layers)
  call dtensor_free(mesh)
  call MPI_Finalize()
  if (value > 0.1d0 * first) error stop 1
end program
